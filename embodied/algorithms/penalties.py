"""Penalties that are added to the rewards of the env."""

from __future__ import annotations

import torch
from torch import Tensor


def overlong(lengths: Tensor, limit: int, buffer: int, factor: float) -> Tensor:
    """``min(−(len − (limit − buffer)) / buffer · factor, 0)``: the soft punishment of DAPO (arXiv 2503.14476, equation
    13). 0 up to ``limit − buffer``, then falling to ``−factor`` at the limit.

    Args:
        lengths: of E episodes, int [E], each at most ``limit``.
        limit: longest possible length.
        buffer: over how much of it the penalty grows, 1..limit.
        factor: the penalty at the limit.

    Returns:
        float64 [E]
    """
    return (-(lengths.double() - (limit - buffer)) / buffer * factor).clamp(max=0.0)


def at_the_end(penalties: Tensor, rewarded: Tensor) -> Tensor:
    """Places each episode's penalty at its last reward that counts: [E] → float [E, V].

    Args:
        rewarded: which of the V rewards of each episode's last record count, bool [E, V]; at least one an episode.
    """
    last = rewarded.shape[1] - 1 - rewarded.flip(1).int().argmax(dim=1)
    return torch.zeros(rewarded.shape, dtype=penalties.dtype).scatter_(1, last[:, None], penalties[:, None])
