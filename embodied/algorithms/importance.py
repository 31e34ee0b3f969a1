"""Ratios of the present policy's probabilities to the acting one's, and corrections for the difference."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp(20) ≈ 5e8 still squares to a finite float32; an element that far off has no gradient."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """``log ρ = clamp(lp − lp_old, ±20)``."""
    return (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def not_finite(logprobs: Tensor, others: Iterable[Tensor], mask: Tensor) -> Tensor:
    """Counts the elements that ``mask`` keeps of which a log-ratio is infinite or no number: int64 [].

    Args:
        logprobs: now [N, M].
        others: what ratios are formed with [N, M] each.
    """
    now = logprobs.detach()
    finite = torch.stack([(now - other).isfinite() for other in others]).all(dim=0)
    return (mask & ~finite).sum()


def sequence_level(logprobs: Tensor, drift: Tensor) -> Tensor:
    """Old log-probs under which each element's ratio is that of its sequence: GSPO-token (arXiv 2507.18071).

    ``s = exp(drift)`` with ``drift = mean_t(lp − lp_old)`` over the sequence; from ``ρ = exp(lp − old)`` with
    ``old = sg(lp) − drift`` follows ``ρ = sg(s) · exp(lp − sg(lp))``, whose gradient is ``s · ∇lp``.

    Args:
        logprobs: now [N, M].
        drift: [N, 1], the same for all records of a sequence.
    """
    return logprobs.detach() - drift


def off_policy(advantages: Tensor, drift: Tensor, delta: float) -> Tensor:
    """Elements to be dropped: those with A < 0 of sequences with ``mean(lp_old − lp) > delta``, bool [N, M].

    The off-policy mask of DeepSeek-V3.2 (arXiv 2512.02556). Unlearning a mistake harms a policy that has moved far from
    the one that made it. Dropped elements stay in the denominators.

    Args:
        advantages: [N, M].
        drift: ``mean(lp − lp_old)`` of the element's sequence [N, 1].
        delta: nats, above 0.
    """
    return (advantages < 0) & (-drift > delta)


def importance_weight(proximal: Tensor, acting: Tensor, cap: float | None, mode: str = "cap") -> Tensor:
    """``min(exp(lp_prox − lp_acting), cap)``: corrects for actions of another policy than the one around which the
    loss clips. Decoupled PPO (arXiv 2110.00641, equation 7), truncated as in IMPALA (arXiv 1802.01561).

    Args:
        proximal: log-probs of the policy at the beginning of the update [N, M].
        acting: log-probs of the policy that acted [N, M].
        cap: largest weight; None for none.
        mode: ``cap``, or ``mask``: weights beyond the cap become 0.
    """
    weight = log_ratio(proximal, acting).exp()
    if cap is None:
        return weight
    return weight.clamp(max=cap) if mode == "cap" else torch.where(weight > cap, 0.0, weight)
