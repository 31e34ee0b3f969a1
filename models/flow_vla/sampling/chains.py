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
Field = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""The same → velocity, and the standard deviation where it is learned (Flow-Noise)."""


class Chain(NamedTuple):
    """Links of D stochastic steps, in the order in which they were made."""

    chunk: Tensor  # float32 [B, H, W], the end
    before: Tensor  # float32 [B, D, H, W], what each stochastic step began from
    after: Tensor  # float32 [B, D, H, W], what it drew
    mean: Tensor  # float64 [B, D, H, W], of what it drew from
    std: Tensor  # float64 [B, D, H, W]
    steps: Tensor  # int64 [B, D], which of the N steps it was


def at(x: Tensor, time: float) -> Tensor:
    """Makes the network's time of all rows: float32 [B]."""
    return torch.full((x.shape[0],), time, dtype=torch.float32, device=x.device)


def solve(velocity: Velocity, noise: Tensor, count: int) -> Tensor:
    """Integrates the ODE in ``count`` Euler steps from noise: float32 [B, H, W]."""
    x = noise
    for time in times(count)[:-1]:
        x = ode(x, velocity(x, at(x, time)), 1.0 / count)
    return x


def sample_all(field: Field, noise: Tensor, draws: Tensor, steps: tuple[Step, ...]) -> Chain:
    """Samples each step.

    Args:
        draws: float32 [B, N, H, W], normal.
    """
    x, links = noise, []
    for number, step in enumerate(steps):
        velocity, std = field(x, at(x, step.time))
        gaussian = mean_of(step, x, velocity), _wide(step.std if std is None else std, x)
        before, x = x, drawn(*gaussian, draws[:, number])
        links.append((before, x, *gaussian))
    which = torch.arange(len(steps), device=x.device).expand(x.shape[0], -1)
    began, ended, mean, spread = (torch.stack(found, 1) for found in zip(*links, strict=True))
    return Chain(x, began, ended, mean, spread, which)


def sample_one(field: Field, noise: Tensor, draw: Tensor, chosen: Tensor, steps: tuple[Step, ...]) -> Chain:
    """Samples one step of each row, and integrates the ODE in the others (πRL, section 4.2.3).

    Args:
        draw: float32 [B, H, W], normal.
        chosen: int64 [B], the step that is sampled.
    """
    x, links = noise, [noise, noise, noise.double(), noise.double()]
    numbers = rows_of(steps, chosen, noise.ndim)
    for number, step in enumerate(steps):
        here = (chosen == number).view(-1, *[1] * (noise.ndim - 1))
        velocity, std = field(x, at(x, step.time))
        gaussian = mean_of(numbers, x, velocity), _wide(numbers[3] if std is None else std, x)
        moved = torch.where(here, drawn(*gaussian, draw), ode(x, velocity, step.width))
        new = (x, moved, *gaussian)
        links = [torch.where(here, one, before) for one, before in zip(new, links, strict=True)]
        x = moved
    began, ended, mean, spread = (link[:, None] for link in links)
    return Chain(x, began, ended, mean, spread, chosen[:, None])


def drawn(mean: Tensor, std: Tensor, draw: Tensor) -> Tensor:
    """Draws the next link, float32."""
    return (mean + std * draw.double()).float()


def _wide(std: Tensor | float, x: Tensor) -> Tensor:
    return torch.as_tensor(std, dtype=torch.float64, device=x.device).expand_as(x)
