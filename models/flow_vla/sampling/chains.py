"""Chains of denoising steps from drawn noise to a chunk.

Shapes: B rows, N steps, H actions, W padded dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .steps import Step, mean_of, ode, rows_of
from .times import times

Velocity = Callable[[Tensor, Tensor], Tensor]
"""x [B, H, W] and times float32 [B] → velocity."""


class Chain(NamedTuple):
    """Links of stochastic steps, in the order in which they were made."""

    chunk: Tensor  # float32 [B, H, W], the end
    before: Tensor  # float32 [B, D, H, W], what each stochastic step began from
    after: Tensor  # float32 [B, D, H, W], what it drew
    steps: Tensor  # int64 [B, D], which of the N steps it was


def at(x: Tensor, time: float) -> Tensor:
    """Makes the network's time of all rows: float32 [B]."""
    return torch.full((len(x),), time, dtype=torch.float32, device=x.device)


def solve(velocity: Velocity, noise: Tensor, count: int) -> Tensor:
    """Integrates the ODE in ``count`` Euler steps from noise: float32 [B, H, W]."""
    x = noise
    for time in times(count)[:-1]:
        x = ode(x, velocity(x, at(x, time)), 1.0 / count)
    return x


def sample_all(velocity: Velocity, noise: Tensor, draws: Tensor, steps: tuple[Step, ...]) -> Chain:
    """Samples each step.

    Args:
        draws: float32 [B, N, H, W], normal.
    """
    x, before, after = noise, [], []
    for number, step in enumerate(steps):
        before.append(x)
        x = _drawn(mean_of(step, x, velocity(x, at(x, step.time))), step.std, draws[:, number])
        after.append(x)
    which = torch.arange(len(steps), device=x.device).expand(len(x), -1)
    return Chain(x, torch.stack(before, 1), torch.stack(after, 1), which)


def sample_one(velocity: Velocity, noise: Tensor, draw: Tensor, chosen: Tensor, steps: tuple[Step, ...]) -> Chain:
    """Samples one step of each row, and integrates the ODE in the others (πRL, section 4.2.3).

    Args:
        draw: float32 [B, H, W], normal.
        chosen: int64 [B], the step that is sampled.
    """
    x, before, after = noise, torch.zeros_like(noise), torch.zeros_like(noise)
    numbers = rows_of(steps, chosen, noise.ndim)
    for number, step in enumerate(steps):
        here = (chosen == number).view(-1, *[1] * (noise.ndim - 1))
        field = velocity(x, at(x, step.time))
        drawn = _drawn(mean_of(numbers, x, field), numbers[3], draw)
        before = torch.where(here, x, before)
        x = torch.where(here, drawn, ode(x, field, step.width))
        after = torch.where(here, x, after)
    return Chain(x, before[:, None], after[:, None], chosen[:, None])


def _drawn(mean: Tensor, std: Tensor | float, draw: Tensor) -> Tensor:
    return (mean + std * draw.double()).float()
