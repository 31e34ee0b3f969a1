"""Reads which keys a command line sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

SIDES = ("env.train", "env.eval")


def keys_of(overrides: Sequence[str]) -> list[str]:
    """Lists the keys that overrides set, with dots; of a whole side, ``env.train={id: x}``, those in it."""
    return [key for override in overrides for key in _keys(override)]


def _keys(override: str) -> list[str]:
    key = override.lstrip("+~").partition("=")[0]
    if key not in SIDES or override.startswith("~"):
        return [key]
    try:
        value = OverridesParser.create().parse_override(override).value()
    except HydraException:
        return [key]
    return [f"{key}.{name}" for name in value] if isinstance(value, Mapping) else [key]
