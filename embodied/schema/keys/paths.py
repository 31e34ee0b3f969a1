"""Reads and changes nested mappings by dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embodied.schema.keys.config import Config
    from embodied.schema.keys.sections.env import EnvSideConfig

SIDES = ("train", "eval")
MISSING = object()


def at(mapping: Mapping[str, Any], key: str) -> Any:
    """Returns the value under a dotted key of a nested mapping; :data:`MISSING` if there is none."""
    value: Any = mapping
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def with_changes(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mapping with other values under some dotted keys. The mapping itself is not changed."""
    changed = dict(mapping)
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        changed[name] = with_changes(changed.get(name) or {}, {rest: value}) if rest else value
    return changed


def without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Returns the mapping without a dotted key, and without sections that are empty then."""
    name, _, rest = key.partition(".")
    left = dict(mapping)
    inner = without(left[name], rest) if rest else None
    if inner:
        left[name] = inner
    else:
        del left[name]
    return left


def leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """Flattens a mapping below ``key`` to dotted keys with their values; of what is no mapping, or an empty one, the
    key itself.

    >>> leaves("a", {"b": 1, "c": {"d": 2}})
    [('a.b', 1), ('a.c.d', 2)]
    """
    if not isinstance(value, Mapping) or not value:
        return [(key, value)]
    return [leaf for name, inner in value.items() for leaf in leaves(f"{key}.{name}" if key else str(name), inner)]


def own_of(config: Config, side: str) -> Mapping[str, Any]:
    """Returns the keyword arguments that the configuration gives the env of a side (``train`` or ``eval``)."""
    env: EnvSideConfig = getattr(config.env, side)
    return env.model_extra or {}
