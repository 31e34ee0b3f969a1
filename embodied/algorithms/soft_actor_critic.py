"""Losses of soft actor-critic over chunks (arXiv 1812.05905; ensembles as in REDQ, arXiv 2101.05982).

A chunk of D numbers is one action, which lasts up to K control steps. γ is a discount from one control step to the
next, so the value after a chunk of k steps counts γ^k.

Shapes: B transitions, n records and K control steps of each, E critics, D numbers of a chunk.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def discounted(rewards: Tensor, num_steps: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Sums the rewards of n records that follow one another.

    Args:
        rewards: float32 [B, n, K]; what stands where nothing was executed may be anything.
        num_steps: control steps that were executed, int [B, n]; 0 = there is no such record any more.
        gamma: discount from one control step to the next.

    Returns:
        Σ γ^i · r_i over all control steps that were executed, float32 [B], and γ to the power of their number.
    """
    first = num_steps.cumsum(1) - num_steps  # control steps before each record
    step = torch.arange(rewards.shape[2], device=rewards.device)
    executed = step < num_steps[..., None]
    discounts = gamma ** (first[..., None] + step).float()
    total = torch.where(executed, rewards * discounts, 0.0).sum((1, 2))
    return total, gamma ** num_steps.sum(1).float()


def target(
    rewards: Tensor, discounts: Tensor, values: Tensor, logprobs: Tensor, temperature: Tensor | float,
    chosen: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Computes what the critics should have said: rewards + discounts · (min over critics − temperature · log-prob).

    Args:
        rewards: of the transitions, float32 [B].
        discounts: of what comes after them, float32 [B]; 0 where the episode terminated.
        values: of drawn chunks at the next observation, by the target critics, float32 [E, B].
        logprobs: of these chunks, float32 [B].
        chosen: critics of which the least counts, int64 [m]; None = all.
    """
    least = (values if chosen is None else values[chosen]).amin(0)
    return rewards + discounts * (least - temperature * logprobs)


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of each critic, summed over critics: float32 [B]. Args: ``values`` [E, B], ``targets``
    [B]."""
    return 0.5 * (values - targets).square().sum(0)


def actor_loss(values: Tensor, logprobs: Tensor, temperature: Tensor | float, least: bool) -> Tensor:
    """Temperature · log-prob − value, float32 [B].

    Args:
        values: of chunks that the actor has drawn, float32 [E, B].
        least: the least of the critics counts, as in soft actor-critic; else their mean, as in REDQ.
    """
    return temperature * logprobs - (values.amin(0) if least else values.mean(0))


def temperature_loss(log_temperature: Tensor, logprobs: Tensor, target_entropy: float) -> Tensor:
    """−log_temperature · (log-prob + target entropy), float32 [B]: the temperature rises while the entropy is below its
    target. Args: ``logprobs`` [B], without gradient."""
    return -log_temperature * (logprobs + target_entropy)


def default_target_entropy(size: int) -> float:
    """−D nats, for chunks of D numbers."""
    return -float(size)


def updates_due(records: int, starts: int, per_record: float) -> int:
    """Counts the updates of a run that has collected ``records`` records, of which the first ``starts`` bring none.

    >>> updates_due(1000, 1000, 0.5), updates_due(1003, 1000, 0.5)
    (0, 1)
    """
    return max(0, math.floor((records - starts) * per_record))
