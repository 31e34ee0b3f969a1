"""Chooses the groups that are worth training on."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied.algorithms.advantages.advantages import alike


def within_bounds(returns: Tensor, group_ids: Tensor, lower: float, upper: float) -> Tensor:
    """Episodes of groups whose mean return lies in ``lower … upper``, both included: DAPO's filter (arXiv 2503.14476)
    with the bounds of SimpleVLA-RL (arXiv 2509.09674).

    A group that always or never succeeds teaches nothing. One that nearly always or nearly never succeeds teaches
    little, and counts fully in the denominators.

    Args:
        returns: float [E]; with a sparse reward, success · reward_coef.
        group_ids: int [E], any numbers in any order.

    Returns:
        bool [E]
    """
    _, index, counts = torch.unique(group_ids, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), dtype=torch.float64, device=returns.device).index_add_(0, index, returns.double())
    # Compared as sums, with a margin for the rounding of bounds such as 0.1 and of the returns.
    margin = 1e-6 * counts
    return ((sums >= lower * counts - margin) & (sums <= upper * counts + margin))[index]


def informative(scores: Tensor, group_ids: Tensor) -> Tensor:
    """Episodes of groups whose scores differ by more than rounding: their advantages are not all 0. DAPO's dynamic
    sampling (arXiv 2503.14476, section 3.2) keeps only these.

    Args:
        scores: float [E].
        group_ids: int [E], any numbers in any order.

    Returns:
        bool [E]
    """
    _, index, counts = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return ~alike(scores.double(), index, len(counts))[index]
