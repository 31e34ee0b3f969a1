"""Kinds of values: names of choices, which are taken in any case (``FSDP`` is ``fsdp``), and numbers."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Names:
    """Annotation of a text key (``Annotated[str, Names(…)]``) that may be one of some names, or something
    else besides."""

    names: tuple[str, ...]


def choices(kind: Any, metadata: Iterable[Any] = ()) -> tuple[str, ...]:
    """Returns the names that a value of an annotated type, or an element of it, may be one of.

    >>> choices(list[typing.Literal["a", "b"]] | None)
    ('a', 'b')
    """
    own = [name for mark in metadata if isinstance(mark, Names) for name in mark.names]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return (*own, *(part for part in parts if isinstance(part, str)))
    if origin is typing.Annotated:
        return (*own, *choices(parts[0], parts[1:]))
    if origin in (typing.Union, types.UnionType, list, tuple):
        own += [name for part in parts for name in choices(part)]
    return tuple(own)


def numbers_only(kind: Any) -> bool:
    """Returns whether values of an annotated type are numbers, or null.

    >>> numbers_only(float | None), numbers_only(int | bool)
    (True, False)
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return numbers_only(parts[0])
    if origin in (typing.Union, types.UnionType):
        return all(part is type(None) or numbers_only(part) for part in parts)
    return kind in (int, float)


def in_known_case(value: Any, known: Sequence[str]) -> Any:
    """Returns a name, or a list of names, in the case in which ``known`` writes it; anything else as it is.

    >>> in_known_case("GRPO", ["grpo", "gspo"]), in_known_case(["JSONL", "my.Tracker"], ["jsonl"])
    ('grpo', ['jsonl', 'my.Tracker'])
    """
    if isinstance(value, list):
        return [in_known_case(one, known) for one in value]
    if not isinstance(value, str) or value in known:
        return value
    same = [name for name in known if name.casefold() == value.casefold()]
    return same[0] if len(same) == 1 else value
