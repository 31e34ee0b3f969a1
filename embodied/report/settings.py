"""The configurations of runs beside the schema's defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from embodied import schema
from embodied.lib import hidden
from embodied.report.reading import Run

UNSET = "—"


@dataclass(frozen=True)
class Setting:
    """A configuration key in a report's table, with the values that the runs have."""

    key: str
    values: Sequence[str]  # values of each run that has a configuration
    default: str
    meaning: str
    changed: bool  # differs from the default, or has none
    varies: bool  # differs between the runs


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Lists every key of the runs' configurations with the runs' values."""
    known = _known()
    flat = [dict(_flat(run.config)) for run in runs if run.config is not None]
    return [
        _setting(key, [text(hidden.in_value(key, one[key])) if key in one else UNSET for one in flat], known.get(key))
        for key in dict.fromkeys(key for one in flat for key in one)
    ]


def _setting(key: str, values: list[str], field: FieldInfo | None) -> Setting:
    default = UNSET if field is None or field.is_required() else text(field.get_default(call_default_factory=True))
    meaning = "" if field is None else field.description or ""
    return Setting(key, values, default, meaning, any(value != default for value in values), len(set(values)) > 1)


def text(value: Any) -> str:
    """Formats a configuration value as it would stand in YAML or on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True)
    return json.dumps(value, ensure_ascii=False, default=str)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _known(section: type[BaseModel] = schema.Config, prefix: str = "") -> dict[str, FieldInfo]:
    """Returns every key that the schema has."""
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        kind, key = field.annotation, f"{prefix}{field.alias or name}"
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= _known(kind, f"{key}.")
        else:
            found[key] = field
    return found
