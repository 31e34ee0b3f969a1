"""Policy losses, element by element; :mod:`embodied.algorithms.aggregation` says how the elements add up.

An element is a token, an action or a chunk, whatever :mod:`embodied.algorithms.layout` makes of the log-probs. All
tensors here are float [N, M] and finite where nothing was executed (``reduce_logprobs`` puts zeros there).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from embodied.errors import ConfigError, unknown_name

MAX_LOG_RATIO = 20.0
"""exp(20) ≈ 5e8 still squares to a finite float32; a token that far off has no gradient."""


class PolicyLoss(NamedTuple):
    """Loss of each element and what happened on the way; all float or bool [N, M]."""

    per_token: Tensor  # differentiable
    ratio: Tensor  # ρ, detached
    clipped: Tensor  # bool: elements whose gradient the clip removed (cispo: bounded)


SEQUENCE_LOSSES = ("gspo",)
"""Losses that take :func:`sequence_level` for the log-probs at action time."""

PROXIMAL_LOSSES = ("tis",)
"""Losses around a proximal policy that is not the one that acted, weighted by :func:`behaviour_weight`."""

LossFunction = Callable[[Tensor, Tensor, Tensor], PolicyLoss]
"""``(logprobs, old_logprobs, advantages) → PolicyLoss``, all [N, M]."""


def make_loss(
    loss_type: str,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
    aipo_rho: float = 5.0,
) -> LossFunction:
    """The loss called ``loss_type`` (``algorithm.loss_type``), with the clips that it reads.

    ``gspo`` is ``ppo`` of what :func:`sequence_level` makes of the log-probs at action time; ``tis`` is ``ppo`` around
    the proximal policy, whose elements :func:`behaviour_weight` weighs.

    Raises:
        UnknownNameError: ``loss_type`` is not known.
        ConfigError: ``clip_ratio_c`` is not above 1, so that it would remove every gradient of a bad action.
    """
    if clip_ratio_c is not None and clip_ratio_c <= 1:
        raise ConfigError(
            f"algorithm.clip_ratio_c is {clip_ratio_c}, expected a number above 1 or null",
            "set algorithm.clip_ratio_c=null (off) or to a usual value: 3.0",
        )
    clipped = partial(ppo, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high, clip_ratio_c=clip_ratio_c)
    known: dict[str, LossFunction] = {
        "ppo": clipped,
        "gspo": clipped,
        "tis": clipped,
        "cispo": partial(cispo, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high),
        "aipo": partial(aipo, rho=aipo_rho),
        "reinforce": reinforce,
    }
    if loss_type not in known:
        raise unknown_name("loss type", loss_type, known, "algorithm.loss_type")
    return known[loss_type]


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """``log ρ = clamp(lp − lp_old, ±20)``."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
) -> PolicyLoss:
    """``−min(ρA, clip(ρ, 1−low, 1+high)·A)``: PPO (arXiv 1707.06347), equation 7, with a bound for each side.

    With ``clip_ratio_c`` the loss of elements with A < 0 is at most ``−c·A``: the dual clip of arXiv 1912.09729.

    Args:
        logprobs: now, differentiable [N, M].
        old_logprobs: at action time [N, M].
        advantages: [N, M].
        clip_ratio_low: ρ below ``1 − low`` gets no gradient where A < 0.
        clip_ratio_high: ρ above ``1 + high`` gets no gradient where A > 0.
        clip_ratio_c: above 1, or None for off; ρ above it gets no gradient where A < 0.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp()
    unclipped = -ratio * advantages
    bounded = -ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high) * advantages
    loss = torch.maximum(unclipped, bounded)
    clipped = bounded > unclipped
    if clip_ratio_c is not None:
        ceiling = torch.where(advantages < 0, -clip_ratio_c * advantages, torch.inf)
        clipped = clipped | (loss > ceiling)
        loss = torch.minimum(loss, ceiling)
    return PolicyLoss(loss, ratio.detach(), clipped)


def sequence_level(logprobs: Tensor, drift: Tensor) -> Tensor:
    """Old log-probs under which each element's ratio is that of its sequence: GSPO-token (arXiv 2507.18071).

    ``s = exp(drift)`` with ``drift = mean_t(lp − lp_old)`` over the sequence; from ``ρ = exp(lp − old)`` with
    ``old = sg(lp) − drift`` follows ``ρ = sg(s) · exp(lp − sg(lp))``, whose gradient is ``s · ∇lp``.

    Args:
        logprobs: now [N, M].
        drift: [N, 1], the same for all records of a sequence.
    """
    return logprobs.detach() - drift


def cispo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_ratio_low: float, clip_ratio_high: float
) -> PolicyLoss:
    """``−sg(clip(ρ, 1−low, 1+high))·A·lp``: CISPO (MiniMax-M1, arXiv 2506.13585).

    The weight is clipped, so that every element keeps a gradient.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp().detach()
    weight = ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    return PolicyLoss(-weight * advantages * logprobs, ratio, weight != ratio)


def aipo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, rho: float) -> PolicyLoss:
    """``−min(ρ, rho)·A``: the truncated ratio of AIPO (LlamaRL, arXiv 2505.24034), without a lower clip.

    Departure: beyond ``rho`` an element has no gradient, as in Cosmos-RL, where the paper's has ``rho · A · ∇lp``. The
    paper's gradient is that of :func:`cispo` with ``clip_ratio_high = rho − 1`` and ``clip_ratio_low`` close to 1.
    """
    ratio = log_ratio(logprobs, old_logprobs).exp()
    return PolicyLoss(-ratio.clamp(max=rho) * advantages, ratio.detach(), ratio.detach() > rho)


def off_policy(advantages: Tensor, drift: Tensor, delta: float) -> Tensor:
    """Elements to be dropped: those with A < 0 of sequences with ``mean(lp_old − lp) > delta``, bool [N, M].

    The off-policy mask of DeepSeek-V3.2 (arXiv 2512.02556): far from the policy that made a mistake,
    unlearning that mistake does harm. What is dropped stays in the denominators.

    Args:
        advantages: [N, M].
        drift: ``mean(lp − lp_old)`` of the element's sequence [N, 1].
        delta: nats, above 0.
    """
    return (advantages < 0) & (-drift > delta)


def behaviour_weight(proximal: Tensor, behaviour: Tensor, cap: float | None, mode: str = "cap") -> Tensor:
    """``min(exp(lp_prox − lp_behaviour), cap)``: what corrects for actions of another policy than the one around which
    the loss clips. Decoupled PPO (arXiv 2110.00641, equation 7), truncated as in IMPALA (arXiv 1802.01561).

    Args:
        proximal: log-probs of the policy at the beginning of the update [N, M].
        behaviour: of the policy that acted [N, M].
        cap: largest weight; None for none.
        mode: ``cap``, or ``mask``: weights beyond the cap become 0.
    """
    weight = log_ratio(proximal, behaviour).exp()
    if cap is None:
        return weight
    return weight.clamp(max=cap) if mode == "cap" else torch.where(weight > cap, 0.0, weight)


def reinforce(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
    """``−A·lp``: Williams (1992). Off-policy data are not corrected; ``old_logprobs`` only give the reported ratio."""
    ratio = log_ratio(logprobs, old_logprobs).exp().detach()
    return PolicyLoss(-advantages * logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool))
