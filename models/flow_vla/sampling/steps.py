"""One denoising step as a Gaussian, and its density. Source: Flow-GRPO, arXiv 2505.05470, eq. 8–9.

With time t, s = t − d the next, v the velocity and e = x + (1 − t)·v the noise that the network sees in x:

    Flow-SDE     mean = x − d·v − (g²·d / 2t)·e,  std = g·√d,  g = a·√(t / (1 − t)), 1 − t := 1/N at t = 1
    Flow-Noise   mean = x − d·v,                  std learned                 (πRL, arXiv 2510.25889, eq. 4)
    ODE          mean = x − d·v,                  std = 0

Sums are in float64: they cost nothing beside the network, and a density divides their rounding by std². All shapes
are arbitrary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...shared.constants import constant
from .times import times

LOG_2PI = math.log(2 * math.pi)


class Step(NamedTuple):
    """Numbers of one step of a chain of N; float32 is enough for the network's time alone."""

    time: float
    width: float  # d = 1/N
    correction: float  # of the noise in x: g²·d / 2t
    std: float


def sde_steps(count: int, level: float) -> tuple[Step, ...]:
    """Returns the steps of Flow-SDE at noise level ``level`` (a); with a = 0 those of the ODE."""
    return tuple(_sde(time, 1.0 / count, level, count) for time in times(count)[:-1])


def plain_steps(count: int) -> tuple[Step, ...]:
    """Returns the steps of Flow-Noise, whose standard deviation a network gives."""
    return sde_steps(count, 0.0)


def _sde(time: float, width: float, level: float, count: int) -> Step:
    rest = 1.0 / count if time == 1.0 else 1.0 - time
    square = level**2 * time / rest
    return Step(time, width, square * width / (2 * time), math.sqrt(square * width))


def mean_of(step: Step | tuple[Tensor, ...], x: Tensor, velocity: Tensor) -> Tensor:
    """Computes the mean of the next link, float64.

    Args:
        step: numbers of one step, or tensors that broadcast to ``x`` where rows are at different steps.
    """
    time, width, correction, _ = step
    x, velocity = x.double(), velocity.double()
    return x - width * velocity - correction * (x + (1.0 - time) * velocity)


def ode(x: Tensor, velocity: Tensor, width: float) -> Tensor:
    """Makes one Euler step, float32."""
    return (x.double() - width * velocity.double()).float()


def rows_of(steps: tuple[Step, ...], chosen: Tensor, ndim: int) -> tuple[Tensor, ...]:
    """Looks up the numbers of the steps ``chosen`` int64 [...]: four tensors float64 [..., 1, 1] for chains of
    ``ndim`` axes."""
    table = constant(tuple(map(tuple, steps)), torch.float64, chosen.device)[chosen]
    return tuple(t.reshape(*chosen.shape, *[1] * (ndim - chosen.ndim)) for t in table.unbind(-1))


def log_prob(link: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
    """Computes the log-density of each number of ``link``, float64.

    A number of ``link`` that is NaN has the log-density NaN and no gradient, so that what is not executed may be NaN.
    """
    std = torch.as_tensor(std, dtype=torch.float64, device=mean.device)
    away = link.double() - mean
    missing = away.isnan() & ~mean.isnan()
    away = torch.where(missing, torch.zeros_like(away), away)
    found = -(away**2) / (2 * std**2) - std.log() - 0.5 * LOG_2PI
    return torch.where(missing, torch.full_like(found, math.nan), found)


def kl(mean: Tensor, other: Tensor, std: Tensor | float, other_std: Tensor | float | None = None) -> Tensor:
    """Computes KL(N(mean, std²) ‖ N(other, other_std²)) of each number, in closed form; ``other_std`` null = equal."""
    away = (mean.double() - other.double()) ** 2
    std = torch.as_tensor(std, dtype=torch.float64, device=away.device)
    if other_std is None:
        return away / (2 * std**2)
    wide = torch.as_tensor(other_std, dtype=torch.float64, device=away.device)
    return (wide / std).log() + (std**2 + away) / (2 * wide**2) - 0.5


def entropy(std: Tensor) -> Tensor:
    """Computes the entropy of a Gaussian of each standard deviation, nats."""
    return std.log() + 0.5 * (LOG_2PI + 1.0)
