"""Bounds of a state, which a head reads as −1 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

from embodied.errors import ConfigError


def plain(bounds: Sequence[float] | None) -> list[float] | None:
    """Returns the numbers as a list, which JSON holds."""
    return None if bounds is None else [float(value) for value in bounds]


def bounds_of(low: Sequence[float] | None, high: Sequence[float] | None) -> tuple[list[float], list[float]] | None:
    """Returns the bounds of a state, as they were given. Raises :class:`ConfigError`: they are no bounds."""
    if low is None and high is None:
        return None
    found = [float(value) for value in low or ()], [float(value) for value in high or ()]
    finite = all(math.isfinite(value) for part in found for value in part)
    if len(found[0]) != len(found[1]) or not finite or any(a >= b for a, b in zip(*found, strict=True)):
        raise ConfigError(
            f"actor.model.state_low is {low} and actor.model.state_high {high}, expected as many finite numbers in "
            "both, each of the first below that of the second",
            "change them, or set both to null",
        )
    return found
