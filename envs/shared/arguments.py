"""Checks the arguments that a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError, unknown_name


def check_name(what: str, got: str, known: Sequence[str] | Mapping[str, Any], key: str) -> None:
    """Raises :class:`embodied.errors.UnknownNameError`, naming ``key``, if ``got`` is none of ``known``; ``what`` is
    the noun for messages."""
    if not isinstance(got, str) or got not in known:
        raise unknown_name(what, str(got), known, key)


def check_list(what: str, got: Any, key: str, example: str) -> None:
    """Raises :class:`embodied.errors.ConfigError`, naming ``key``, unless ``got`` is a list with something in it;
    ``what`` is the noun for its elements."""
    if isinstance(got, str) or not isinstance(got, Sequence) or not got:
        raise ConfigError(f"{key} is {got!r}, expected a list of {what}, one at least", f"set {key}={example}")


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
