"""What an update did to the policy, as sums that micro-batches and processes can add up.

No number of :class:`PolicyStats` goes to the host before :meth:`PolicyStats.metrics`, so that adding does not wait for
the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.algorithms.losses import PolicyLoss


@dataclass(frozen=True)
class PolicyStats:
    """Facts about valid elements. Between processes: all-reduce ``sums`` with sum and ``peak`` with max."""

    sums: Tensor  # float64 [4]: elements, Σρ, elements clipped, Σ(ρ − 1 − log ρ)
    peak: Tensor  # float64 [1]: largest ρ, 0 when there are no elements

    def __add__(self, other: PolicyStats) -> PolicyStats:
        return PolicyStats(self.sums + other.sums, torch.maximum(self.peak, other.peak))

    @property
    def mean_ratio(self) -> float:
        """Mean ρ; 1 when there are no elements."""
        count, ratio = self.sums[:2].tolist()
        return ratio / count if count else 1.0

    def metrics(self) -> dict[str, float]:
        """The ``train/`` metrics of these elements; empty when there are none."""
        count, ratio, clipped, kl = self.sums.tolist()
        if not count:
            return {}
        return {
            "train/ratio_mean": ratio / count,
            "train/ratio_max": self.peak.item(),
            "train/clip_share": clipped / count,
            "train/approx_kl": kl / count,
        }


def policy_stats(loss: PolicyLoss, mask: Tensor) -> PolicyStats:
    """Facts about the elements of one micro-batch that ``mask`` bool [N, M] keeps.

    The divergence is Schulman's k3 for KL(old ‖ now), ``(ρ − 1) − log ρ``: never negative, and unbiased for actions of
    the old policy (http://joschu.net/blog/kl-approx.html).
    """
    # Selected by `where`, not by index: an index of unknown length would wait for the device.
    ratio = torch.where(mask, loss.ratio, 1.0).double()
    kl = ratio - 1 - ratio.log()
    sums = [mask.sum(), torch.where(mask, ratio, 0.0).sum(), (loss.clipped & mask).sum(), kl.sum()]
    return PolicyStats(torch.stack([value.double() for value in sums]), torch.where(mask, ratio, 0.0).amax().reshape(1))


def logprob_gap(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> float:
    """``train/logprob_gap``: the largest ``|lp − lp_old|`` among valid elements [N, M], in nats.

    Before the first update it says how far trainer and rollout disagree about the same weights.
    """
    gaps = (logprobs.detach() - old_logprobs)[mask].abs()
    return gaps.max().item() if gaps.numel() else 0.0


def sum_and_count(values: Tensor, mask: Tensor) -> Tensor:
    """Of the elements [N, M] that ``mask`` keeps: float64 [2] on the host. Micro-batches and processes add it up."""
    kept = torch.where(mask, values.detach(), 0.0).double().sum()
    return torch.stack([kept, mask.sum().double()]).cpu()
