"""Advantages of whole episodes, by comparison with the others of their group.

E episodes with one return each; episodes of equal ``group_id`` are compared. Ids are any integers in any order: nothing
is read from an episode's place in the batch. The caller hands over *all* episodes of an iteration, of all processes.

Departure from the papers: a group whose returns are all equal gets exactly 0, not the rounding error of ``R − mean``
divided by 1e-6. "Exactly" matters, because records of advantage 0 are skipped in training. A return is a sum of float32
rewards, and with relative ones the same end is reached by other sums: a difference below :data:`ROUNDING` is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 1e-6
"""Returns that differ by less than this share of 1 + |R| count as equal."""


@dataclass(frozen=True)
class Advantages:
    """Advantages of E episodes, with counts of their groups: all, of one episode, and with equal returns."""

    values: Tensor  # float32 [E]
    groups: int
    single_groups: int  # groups of one episode: nothing to compare with
    zero_groups: int  # groups whose advantages are all 0, those of one episode included: no gradient comes from them

    @property
    def zero_share(self) -> float:
        """Share of groups without a gradient, in 0..1."""
        return self.zero_groups / self.groups if self.groups else 0.0


def grpo(
    returns: Tensor, group_ids: Tensor, std_ddof: int = 1, eps: float = 1e-6, normalize: bool = True
) -> Advantages:
    """``(R − mean_g) / (std_g + eps)``: DeepSeekMath (arXiv 2402.03300), section 4.1.2.

    Args:
        returns: float [E].
        group_ids: int [E].
        std_ddof: 1 for the sample standard deviation, 0 for that of the population.
        eps: keeps groups of nearly equal returns finite.
        normalize: divide by ``std_g + eps``; without it this is :func:`dr_grpo`.
    """
    groups = _Groups.of(returns, group_ids)
    if not normalize:
        return groups.finish(groups.centred)
    variance = groups.sum(groups.centred**2) / (groups.counts - std_ddof).clamp(min=1)
    return groups.finish(groups.centred / (variance.sqrt() + eps)[groups.index])


def dr_grpo(returns: Tensor, group_ids: Tensor) -> Advantages:
    """``R − mean_g``: Dr. GRPO (arXiv 2503.20783), section 3.2. Meant for ``seq-mean-token-sum-norm``."""
    return grpo(returns, group_ids, normalize=False)


def rloo(returns: Tensor, group_ids: Tensor) -> Advantages:
    """``R − mean of the others = n/(n−1) · (R − mean_g)``: the RLOO estimator (arXiv 2402.14740)."""
    groups = _Groups.of(returns, group_ids)
    factor = groups.counts / (groups.counts - 1).clamp(min=1)
    return groups.finish(groups.centred * factor[groups.index])


def raw(returns: Tensor, group_ids: Tensor) -> Advantages:
    """The return itself: REINFORCE without a baseline. Groups are only counted."""
    return _Groups.of(returns, group_ids).finish(returns)


def remax(returns: Tensor, baselines: Tensor, group_ids: Tensor) -> Advantages:
    """``R − R_greedy``: ReMax (arXiv 2310.10505), equation 6. Groups are only counted.

    ``R`` is the whole return at each step of an episode, also with dense rewards. verl's ``remax`` has the rewards from
    that step on in its place; the two are the same where only the last step has a reward.

    Args:
        baselines: the return of the episode in which each chunk is the likeliest one, from the same start; or what
            the start is worth (:mod:`embodied.algorithms.advantages.start_value`); float [E].
    """
    difference = returns.double() - baselines.double()
    equal = nearly_equal(returns.double(), baselines.double())
    return _Groups.of(returns, group_ids).finish(torch.where(equal, 0.0, difference))


def nearly_equal(low: Tensor, high: Tensor) -> Tensor:
    """Whether returns float64 [n] differ by no more than the rounding of their sums, bool [n]."""
    return (high - low).abs() <= ROUNDING * (1 + high.abs())


def alike(returns: Tensor, index: Tensor, groups: int) -> Tensor:
    """Returns which groups have equal returns, bool [G]: those of float64 [E] are all :func:`nearly_equal`; ``index``
    int64 [E] in 0..G−1 names each episode's group."""
    empty = torch.zeros(groups, dtype=returns.dtype, device=returns.device)
    low, high = (empty.scatter_reduce(0, index, returns, end, include_self=False) for end in ("amin", "amax"))
    return nearly_equal(low, high)


@dataclass(frozen=True)
class _Groups:
    """G groups of E episodes. Float64, so that the order of episodes does not show in float32."""

    index: Tensor  # int64 [E], the group of an episode, 0..G−1
    counts: Tensor  # int64 [G], episodes of a group
    centred: Tensor  # float64 [E], R − mean_g; exactly 0 in groups whose returns are all equal

    @classmethod
    def of(cls, returns: Tensor, group_ids: Tensor) -> _Groups:
        if returns.ndim != 1 or returns.shape != group_ids.shape:
            raise ValueError(f"got returns {list(returns.shape)} and ids {list(group_ids.shape)}, expected [E] of both")
        _, index, counts = torch.unique(group_ids, return_inverse=True, return_counts=True)
        exact = returns.double()
        mean = torch.zeros(len(counts), dtype=exact.dtype, device=exact.device).index_add_(0, index, exact) / counts
        # The mean of three times 0.1 is not 0.1, hence the comparison instead of trusting the subtraction.
        return cls(index, counts, torch.where(alike(exact, index, len(counts))[index], 0.0, exact - mean[index]))

    def sum(self, values: Tensor) -> Tensor:
        """Sums of the groups: [E] → [G]."""
        return torch.zeros(len(self.counts), dtype=values.dtype, device=values.device).index_add_(0, self.index, values)

    def finish(self, values: Tensor) -> Advantages:
        rounded = values.float()
        moving = self.sum((rounded != 0).long())
        return Advantages(
            values=rounded,
            groups=len(self.counts),
            single_groups=int((self.counts == 1).sum()),
            zero_groups=int((moving == 0).sum()),
        )
