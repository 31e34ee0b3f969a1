"""Values of keys under ``actor.model``, for the settings of several networks. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embodied.errors import ConfigError


def bad(key: str, value: Any, reason: str, fix: str) -> ConfigError:
    """Makes the error for a wrong value of a key under ``actor.model``."""
    return ConfigError(f"actor.model.{key} = {value!r}: {reason}", f"actor.model.{key}: {fix}")


def as_tuple(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Converts one name or several to a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
