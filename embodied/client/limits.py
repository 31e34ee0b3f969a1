"""Which actions a robot may be given: the interval of each dimension, from all limits together. Pure arithmetic.

The motion m of a dimension is what one control step changes of its position x: of a delta action the action itself, of
an absolute one its difference from the action before. All is counted in the unit of an action.

| limit | says |
|---|---|
| bounds | low ≤ action ≤ high |
| velocity | −v ≤ m ≤ v |
| acceleration | m₋₁ − a ≤ m ≤ m₋₁ + a, with m₋₁ the motion of the control step before |
| workspace | x + m within the box; a position that lies outside of it goes no further out |

Acceleration and workspace together: near a wall the motion must be such that braking by ``a`` a control step still ends
before it. So there is always an action that meets all limits, if the position is that which the actions give. Where a
measured position differs so much that there is none, the guard stops the robot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BRAKE = 0.999
"""Share of the acceleration limit that braking before a wall counts on. The rest covers the rounding of actions to
float32."""


class Interval(NamedTuple):
    """Values that a limit allows for an action: float64 [A] each."""

    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Limits:
    """Limits of A dimensions, in the unit of an action; infinite where there is none: float64 [A] each."""

    absolute: np.ndarray  # bool [A]: the action is a position, not a change of one
    low: np.ndarray
    high: np.ndarray
    velocity: np.ndarray  # largest motion of a control step
    acceleration: np.ndarray  # largest change of the motion from one control step to the next
    box_low: np.ndarray  # lower corner of the box for the position
    box_high: np.ndarray

    @property
    def dim(self) -> int:
        """A, the number of action dimensions."""
        return len(self.low)

    @property
    def needs_position(self) -> np.ndarray:
        """bool [A]: dimensions whose limits cannot be applied without a position."""
        boxed = np.isfinite(self.box_low) | np.isfinite(self.box_high)
        return np.where(self.absolute, np.isfinite(self.velocity) | np.isfinite(self.acceleration), boxed)


def intervals(limits: Limits, position: np.ndarray, motion: np.ndarray) -> Mapping[str, Interval]:
    """Returns the interval of actions that each limit allows in the next control step, by the limit's name.

    Args:
        position: x before it, float64 [A]; NaN where it is not known, which lifts the limits that need it.
        motion: m of the control step before, float64 [A].
    """
    absolute = limits.absolute
    base = np.where(absolute, position, 0.0)
    low, high = np.maximum(limits.box_low, np.where(absolute, limits.low, -np.inf)), limits.box_high
    high = np.minimum(high, np.where(absolute, limits.high, np.inf))
    found = {
        "bounds": (limits.low, limits.high),
        "velocity": (base - limits.velocity, base + limits.velocity),
        "acceleration": (base + motion - limits.acceleration, base + motion + limits.acceleration),
        "workspace": (
            base - reach(position - low, BRAKE * limits.acceleration),
            base + reach(high - position, BRAKE * limits.acceleration),
        ),
    }
    return {name: Interval(_known(low, -np.inf), _known(high, np.inf)) for name, (low, high) in found.items()}


def _known(values: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isnan(values), otherwise, values)


def reach(distance: np.ndarray, brake: np.ndarray) -> np.ndarray:
    """Returns the largest motion towards a wall after which braking ends before it: float64 [A].

    Braking lowers the motion by ``brake`` each control step. From m = k·brake + r, with r below ``brake``, the way to
    a stand is (k + 1)·m − brake·k(k + 1)/2.

    Args:
        distance: to the wall; 0 is returned where it is 0 or less.

    >>> reach(np.array([3.0, 6.0, 7.0, -1.0]), np.array([1.0, 1.0, np.inf, 1.0])).tolist()
    [2.0, 3.0, 7.0, 0.0]
    """
    left = np.maximum(distance, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.floor((np.sqrt(1.0 + 8.0 * left / brake) - 1.0) / 2.0)
        motion = (left + brake * steps * (steps + 1.0) / 2.0) / (steps + 1.0)
    return np.where(np.isfinite(brake) & (brake > 0) & np.isfinite(left), motion, left)


def together(allowed: Mapping[str, Interval]) -> Interval:
    """Intersects the intervals of all limits; low lies above high where they allow nothing."""
    return Interval(
        np.max([one.low for one in allowed.values()], axis=0), np.min([one.high for one in allowed.values()], axis=0)
    )


def nearest(wanted: np.ndarray, allowed: Interval) -> np.ndarray | None:
    """Returns the nearest allowed action as float32 [A], not rounded out of its interval; None if there is none."""
    if (allowed.low > allowed.high).any():
        return None
    given = np.clip(wanted, allowed.low, allowed.high).astype(np.float32)
    given = np.where(given > allowed.high, np.nextafter(given, np.float32(-np.inf)), given)
    given = np.where(given < allowed.low, np.nextafter(given, np.float32(np.inf)), given)
    inside = (given >= allowed.low) & (given <= allowed.high)
    return given.astype(np.float32) if inside.all() else None


def broken(wanted: np.ndarray, allowed: Mapping[str, Interval]) -> list[str]:
    """Returns the limits that an action breaks, with the dimension, e.g. ``velocity[2]``."""
    return [
        f"{name}[{number}]"
        for name, one in allowed.items()
        for number in np.flatnonzero((wanted < one.low) | (wanted > one.high))
    ]
