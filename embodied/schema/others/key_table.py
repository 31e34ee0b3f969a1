"""All keys of the schema as a table: for the pages of documentation, ``embodied explain`` and completion."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from embodied.schema.keys.config import Config
from embodied.schema.others.keep_default import silent_values

Model = type[BaseModel]


@dataclass(frozen=True)
class Key:
    """A configuration key with its section, type, default and meaning, in words."""

    section: str  # runner.logger
    name: str  # runner.logger.log_path
    type: str  # str | null
    default: str
    meaning: str
    model: Model  # class of the section that declares it


def keys() -> Iterator[Key]:
    """Yields every key, section by section."""
    for section, model in _sections("", Config):
        for name, field in model.model_fields.items():
            if not _model_of(field):
                key = Key(
                    section, f"{section}.{field.alias or name}", _type(field.annotation), _default(field.default),
                    field.description or "", model,
                )  # fmt: skip
                yield _with_null(key) if None in silent_values().get(key.name, ()) else key


def _with_null(key: Key) -> Key:
    return replace(key, type=f"{key.type} | null", meaning=f"{key.meaning.removesuffix('.')}; null = the default.")


def _sections(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        if inner := _model_of(field):
            yield from _sections(f"{path}.{name}".lstrip("."), inner)
        elif named := _named_model_of(field):
            yield from _sections(f"{path}.{name}{named[0]}", named[1])


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _named_model_of(field: FieldInfo) -> tuple[str, type[BaseModel]] | None:
    """The section in an optional field, or in a table under names of the user's, and what stands before its keys."""
    path, kinds = "", [field.annotation]
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, type) and not typing.get_args(kind) and issubclass(kind, BaseModel):
            return path, kind
        path += ".NAME" if typing.get_origin(kind) is dict else ""
        kinds += typing.get_args(kind)
    return None


def _type(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Annotated:
        return _type(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return " | ".join(f"`{value}`" for value in typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " | ".join(_type(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return f"list of {_type(typing.get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "section"
    return "null" if kind is type(None) else kind.__name__


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "set by the YAML files"
    if value is None:
        return "null"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
