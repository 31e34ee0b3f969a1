"""Checks the arguments that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError, unknown_name


def check_name(what: str, got: str, known: Sequence[str] | Mapping[str, Any], key: str) -> None:
    """Raises :class:`embodied.errors.UnknownNameError`, naming ``key``, if ``got`` is none of ``known``; ``what`` is
    the noun for messages."""
    if got not in known:
        raise unknown_name(what, str(got), known, key)


def check_range(what: str, got: Any, low: int, high: int) -> None:
    """Raises :class:`embodied.errors.ConfigError` unless ``got`` is a whole number from ``low`` to ``high``; ``what``
    names it."""
    if isinstance(got, bool) or not isinstance(got, int) or not low <= got <= high:
        raise ConfigError(f"{what} is {got!r}, expected a whole number from {low} to {high}", f"change {what}")


def check_number(what: str, got: Any, low: float, high: float) -> None:
    """Raises :class:`embodied.errors.ConfigError` unless ``got`` is a number from ``low`` to ``high``; ``what`` names
    it."""
    if isinstance(got, bool) or not isinstance(got, int | float) or not low <= got <= high:
        raise ConfigError(f"{what} is {got!r}, expected a number from {low:g} to {high:g}", f"change {what}")
