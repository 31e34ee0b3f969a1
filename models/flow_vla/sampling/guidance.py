"""Real-time chunking: the new chunk goes on from what is left of the one before. Source: arXiv 2506.07339.

LeRobot's formula leaves out the derivative of the network; ``jacobian`` has it, as in the paper, for a backward pass a
step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .chains import Velocity, at
from .steps import ode
from .times import times


def prefix_weights(schedule: str, delay: int, horizon: int, total: int) -> Tensor:
    """Returns how much each of ``total`` actions keeps to the chunk before, float32: 1 for those that are executed
    while the answer is awaited, falling to 0 at ``horizon``.

    Args:
        schedule: a name of :data:`~..settings.SCHEDULES`.
        delay: actions that are executed meanwhile.
        horizon: actions of the chunk before that count.
    """
    delay = min(delay, horizon)
    found = torch.zeros(total)
    found[: delay if schedule != "ones" else horizon] = 1.0
    between = horizon - delay
    if schedule in ("linear", "exp") and between > 0:
        falling = torch.linspace(1, 0, between + 2)[1:-1]
        found[delay:horizon] = falling if schedule == "linear" else falling * torch.expm1(falling) / (math.e - 1)
    return found


def guided(
    velocity: Velocity, noise: Tensor, left_over: Tensor, weights: Tensor, count: int, most: float = 10.0,
    jacobian: bool = False,
) -> Tensor:  # fmt: skip
    """Integrates the ODE towards the rest of the chunk before: float32 [B, H, W].

    Args:
        left_over: float32 [B, at most H, at most W], normalised, of the chunk before from now on.
        weights: float32 [H] or [B, H], see :func:`prefix_weights`.
        most: of the guidance weight.
    """
    goal = torch.zeros_like(noise)
    goal[:, : left_over.shape[1], : left_over.shape[2]] = left_over
    x = noise
    for time in times(count)[:-1]:
        field, correction = _corrected(velocity, x, time, goal, weights.to(x.device)[..., None], jacobian)
        x = ode(x, field - guidance_weight(time, most) * correction, 1.0 / count)
    return x


def guidance_weight(time: float, most: float) -> float:
    """Computes the weight of the correction at a time: (1 − τ)/τ · ((1 − τ)² + τ²)/(1 − τ)², τ = 1 − time, at most
    ``most``."""
    tau = 1.0 - time
    if tau <= 0.0 or time <= 0.0:
        return most
    return min(time / tau * (time**2 + tau**2) / time**2, most)


def _corrected(
    velocity: Velocity, x: Tensor, time: float, goal: Tensor, weights: Tensor, jacobian: bool
) -> tuple[Tensor, Tensor]:
    if not jacobian:
        field = velocity(x, at(x, time))
        return field, (goal - (x - time * field)) * weights
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        field = velocity(x, at(x, time))
        end = x - time * field
        (correction,) = torch.autograd.grad(end, x, ((goal - end) * weights).detach())
    return field.detach(), correction
