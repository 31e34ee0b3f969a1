"""Times of a chain: 1 is noise and 0 the action."""

from __future__ import annotations

import torch
from torch import Tensor


def times(steps: int) -> tuple[float, ...]:
    """Returns the times before each of ``steps`` Euler steps, and 0.

    As LeRobot counts them, in double precision from 1. A step is 1 / steps wide, also where rounding parts two times.
    """
    return (*(1.0 + step * (-1.0 / steps) for step in range(steps)), 0.0)


def beta_times(uniform: Tensor) -> Tensor:
    """Turns uniform numbers into times of supervised training: 0.999 · Beta(1.5, 1) + 0.001, by the inverse of its
    distribution function."""
    return uniform.clamp(min=torch.finfo(uniform.dtype).tiny) ** (1 / 1.5) * 0.999 + 0.001
