"""Messages about unknown keys and wrong values, and the fixes that they name."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from embodied.errors import did_you_mean
from embodied.schema.keys.groups import GROUPS
from embodied.schema.keys.paths import leaves
from embodied.schema.others.key_table import keys
from embodied.schema.others.tables import joined
from embodied.schema.others.values import Settings, as_overrides, other_name, translated

OF_A_KIND = ("_type", "_parsing", "_from_float", "_unicode", "_instance_of", "_str")
"""How the names of pydantic's errors end that mean: another kind of value is expected."""


@dataclass(frozen=True)
class KeyProblem:
    """A problem with one key."""

    line: str
    key: str
    instead: Settings = field(default_factory=dict)  # keys to set in its place, where they are known exactly


def fix(found: Sequence[KeyProblem], rest: str) -> str:
    """Formats an error's fix: what to set instead, where it is known of a key, then ``rest``, which is for all others.

    >>> fix([Told("…", "runner.sed", {"runner.seed": 1})], "correct it")
    'set runner.seed=1 instead of runner.sed'
    """
    exact = [told for told in found if told.instead]
    if not exact:
        return rest
    settings: dict[str, Any] = {}
    for told in exact:
        settings |= {key: value for key, value in told.instead.items() if key not in settings}
    keys = [told.key for told in exact if told.key not in settings]  # others have another value
    said = f"set {as_overrides(settings)}" + (f" instead of {joined(keys)}" if keys else "")
    return said if len(exact) == len(found) else f"{said}; {rest}"


def correct_values(wrong: Sequence[KeyProblem]) -> str:
    """Says what to do about wrong values where nothing exact is known: a section takes no value, its keys do."""
    vague = [told.key for told in wrong if not told.instead]
    sections = {key: names for key in vague if (names := _keys_in(key))}
    said = [f"write keys of it: {', '.join(names[:4] + ['…'] * (len(names) > 4))}" for names in sections.values()]
    if plain := [key for key in vague if key not in sections]:
        said.append(f"set {joined(plain)} to a value of that kind; docs/configuration.md says what it means")
    return "; ".join(said)


def given_to(key: str, value: Any) -> Settings:
    """Returns the settings that give ``key`` a value; none if it takes no such value, as a section takes keys alone."""
    names = _keys_in(key)
    if isinstance(value, Mapping):
        inside = dict(leaves(key, value))
        return inside if inside.keys() <= {*names} else {}
    return {key: value} if value is not None and (key in GROUPS or not names) else {}


def with_other_dots(key: str) -> str:
    """Returns the only key that differs in dots and underscores alone (``demos_path``: ``demos.path``); "" if none."""
    same = [one.name for one in keys() if one.name.replace(".", "_") == key.replace(".", "_")]
    return same[0] if len(same) == 1 else ""


def _keys_in(section: str) -> list[str]:
    """Returns the names of a section's keys; none if it is a key itself."""
    return [one.name for one in keys() if one.name.startswith(f"{section}.")]


def wrong_values(problems: Iterable[Any], kind: Any, value: Any, key: str = "") -> list[KeyProblem]:
    """Turns pydantic's errors about values into problems: one for each key, also if it may be of several types.

    Args:
        problems: of a ``ValidationError``.
        kind: the annotation that was checked against.
        value: what was checked.
        key: where it stands; "" = it is the whole configuration.
    """
    found: dict[str, KeyProblem] = {}
    for problem in problems:
        path, expected, union = _place(problem["loc"], kind)
        name, got = ".".join(filter(None, [key, *path])), _within(value, path)
        expected = expected if union or problem["type"].endswith(OF_A_KIND) else ""
        found.setdefault(name, _told(name, problem, got if union else problem["input"], expected))
    return list(found.values())


def _told(key: str, problem: Any, got: Any, expected: str) -> KeyProblem:
    if problem["type"] == "missing":
        return KeyProblem(f"{key} is missing", key)
    if expected:
        return KeyProblem(f"{key} = {got!r}: expected {expected}", key)
    said = f"{problem['msg'][:1].lower()}{problem['msg'][1:]}"
    instead: Settings = {}
    if problem["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        other = other_name(key, got)
        said += "." + (other or did_you_mean(str(got), known))
        instead = translated(key, got) if other else {}
    return KeyProblem(f"{key} = {got!r}: {said}", key, instead)


def _place(location: Sequence[int | str], kind: Any) -> tuple[list[str], str, bool]:
    """Finds the key of a problem.

    Returns:
        its path; the words for its kind, "" if there are none; whether it may be of several kinds: then the location
        goes on with the names of these.
    """
    path: list[str] = []
    for part in location:
        kind, several = _one(kind)
        if several:
            return path, words(kind), True
        path.append(str(part))
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            named = {f.alias or name: f.annotation for name, f in kind.model_fields.items()}
            kind = named.get(str(part))
        else:
            kind = (typing.get_args(kind) or (None,))[-1]
    kind, several = _one(kind)
    return path, words(kind), several


def _one(kind: Any) -> tuple[Any, bool]:
    """A kind without null and notes, and whether several are left."""
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind, False
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    return _one(parts[0]) if len(parts) == 1 else (kind, True)


def _within(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else value[int(part)] if part.isdecimal() else None
    return value


_PLAIN = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_MANY = {"a text": "texts", "a whole number": "whole numbers", "a number": "numbers"}


def words(kind: Any) -> str:
    """Returns the noun for values of an annotated type; "" if there is none.

    >>> words(dict[str, float] | list[str] | None)
    'names with numbers ({name: …}) or a list of texts'
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, parts = typing.get_origin(kind), [part for part in typing.get_args(kind) if part is not type(None)]
    if origin is typing.Annotated:
        return words(parts[0])
    if origin is typing.Literal:
        return joined([str(part) for part in parts], "or")
    if origin in (typing.Union, types.UnionType):
        each = [words(part) for part in parts]
        return joined(each, "or") if all(each) else ""
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return f"names with {_MANY.get(words(parts[-1]), 'values')} ({{name: …}})"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Sequence):
        return f"a list of {_MANY.get(words(parts[0]), 'values')}" if parts else "a list"
    return "keys with values" if isinstance(kind, type) and issubclass(kind, (BaseModel, dict)) else ""
