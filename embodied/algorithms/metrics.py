"""Measures what an update did to the policy, as sums that micro-batches and processes can add up.

Nothing here goes to the host before :meth:`PolicyStats.metrics`, so that adding does not wait for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.algorithms.policy_loss import PolicyLoss

LOG_RANGE = 4.0
"""Log-ratios of the histogram lie in ±4; those beyond count at its ends (ρ = e^±4 = 54.6 and 0.018)."""

BIN = 0.001
"""Width of its bins in nats: a quantile of ρ is known to 0.05 % of itself."""

_BINS = round(2 * LOG_RANGE / BIN) + 1
_FACTS = 5

QUANTILES = {"train/ratio_p01": 0.01, "train/ratio_p50": 0.5, "train/ratio_p99": 0.99}


@dataclass(frozen=True)
class PolicyStats:
    """Facts about the ratios ρ of valid elements. Over processes ``sums`` add up; of ``peak`` the largest counts."""

    # float64 [5 + bins]: elements, Σρ, elements clipped below and above 1, Σ(ρ − 1 − log ρ), histogram of log ρ
    sums: Tensor
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
        count, ratio, low, high, kl = self.sums[:_FACTS].tolist()
        if not count:
            return {}
        return {
            "train/ratio_mean": ratio / count,
            "train/ratio_max": self.peak.item(),
            **{name: self.quantile(share) for name, share in QUANTILES.items()},
            "train/clip_share": (low + high) / count,
            "train/clip_share_low": low / count,
            "train/clip_share_high": high / count,
            "train/approx_kl": kl / count,
        }

    def quantile(self, share: float) -> float:
        """The least ρ, to the histogram's resolution, that at least ``share`` (0..1) of the elements do not exceed."""
        histogram = self.sums[_FACTS:].cpu()
        below = histogram.cumsum(0)
        index = int((below < share * below[-1] - 1e-9).sum())
        return math.exp(index * BIN - LOG_RANGE)


STATS = tuple(PolicyStats(torch.ones(_FACTS + _BINS), torch.ones(1)).metrics())
"""The names of the metrics that :class:`PolicyStats` gives."""


def policy_stats(loss: PolicyLoss, mask: Tensor) -> PolicyStats:
    """Facts about the elements of one micro-batch that ``mask`` bool [N, M] keeps.

    The divergence is Schulman's k3 for KL(old ‖ now), ``(ρ − 1) − log ρ``: never negative, and unbiased for actions of
    the old policy (http://joschu.net/blog/kl-approx.html).
    """
    # Selected by `where`, not by index: an index of unknown length would wait for the device.
    ratio = torch.where(mask, loss.ratio, 1.0).double()
    log, clipped = ratio.log(), loss.clipped & mask
    low, high = (clipped & (ratio < 1)).sum(), (clipped & (ratio >= 1)).sum()
    sums = [mask.sum(), torch.where(mask, ratio, 0.0).sum(), low, high, (ratio - 1 - log).sum()]
    facts = torch.stack([value.double() for value in sums])
    within = log.nan_to_num(nan=LOG_RANGE).clamp(-LOG_RANGE, LOG_RANGE)  # a skipped update may have others
    bins = ((within + LOG_RANGE) / BIN).round().long()
    histogram = torch.zeros(_BINS, dtype=torch.float64, device=mask.device)
    histogram.index_add_(0, bins.flatten(), mask.flatten().double())
    return PolicyStats(torch.cat([facts, histogram]), torch.where(mask, ratio, 0.0).amax().reshape(1))


def logprob_gap(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """``train/logprob_gap``: the largest ``|lp − lp_old|`` among valid elements [N, M], in nats. 0 if there is none.

    Before the first update it says how far trainer and rollout disagree about the same weights.

    Returns:
        float [], on the device of the log-probs
    """
    return torch.where(mask, (logprobs.detach() - old_logprobs).abs(), 0.0).amax()


def sum_and_count(values: Tensor, mask: Tensor) -> Tensor:
    """Sum and number of the elements [N, M] that ``mask`` keeps: float64 [2]. Micro-batches and processes add it up."""
    kept = torch.where(mask, values.detach(), 0.0).double().sum()
    return torch.stack([kept, mask.sum().double()])
