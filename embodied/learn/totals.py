"""What an update adds up: over its micro-batches, and over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.metrics import PolicyStats, logprob_gap, policy_stats, sum_and_count
from embodied.learn.engine import Outcome, Taken
from embodied.learn.objective import Terms
from embodied.parallel.group import Group as World


@dataclass
class UpdateTotals:
    """Sums over the micro-batches of one ``update``: of this rank in the upper half, of all ranks in the lower."""

    stats: PolicyStats | None = None
    batch_stats: PolicyStats | None = None  # of the optimizer batch in progress
    value_loss: float | None = None  # None: no value head is trained
    gap: float | None = None
    means: dict[str, Tensor] = field(default_factory=dict)  # metric → float64 [2], sum and count or weight
    samples: int = 0  # records that went forward and backward, each time that they did
    flops: float = 0.0  # of these passes; 0 if the policy does not say
    stalest: int | None = None  # most optimizer updates between acting and training

    loss: float = 0.0
    value_grad_norm: float = 0.0
    grad_norm: float = 0.0
    steps: int = 0  # optimizer steps taken
    batches: int = 0  # optimizer batches with something to learn from
    skipped: int = 0  # records left out: their advantage is zero
    bad: int = 0  # updates left out: loss or gradient not finite
    overflows: int = 0  # updates left out: the loss was scaled too far for fp16
    filtered: int = 0  # groups left out by filter_rewards
    early_stops: int = 0  # epochs that ended early: the ratio passed early_stop_imp_ratio

    def average(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Elements of the metric ``name`` that ``mask`` keeps, both [m, M]."""
        self._add_to_mean(name, sum_and_count(values, mask))

    def _add_to_mean(self, name: str, found: Tensor) -> None:
        self.means[name] = found if name not in self.means else self.means[name] + found

    def mean(self, name: str) -> float | None:
        """None if no element was seen."""
        total, count = self.means[name].tolist() if name in self.means else (0.0, 0.0)
        return total / count if count else None

    def begin_batch(self) -> None:
        self.batch_stats = None

    def add(self, terms: Terms, mask: Tensor, measure_gap: bool) -> None:
        """A micro-batch; ``mask`` bool [m, M] says which of its elements count."""
        stats = policy_stats(terms.policy, mask)
        self.batch_stats = stats if self.batch_stats is None else self.batch_stats + stats
        self.stats = stats if self.stats is None else self.stats + stats
        weighed = torch.stack([terms.entropy.detach(), terms.entropy_weight])
        self._add_to_mean("train/entropy", weighed.double().cpu())
        if terms.value_loss.requires_grad:
            self.value_loss = (self.value_loss or 0.0) + terms.value_loss.item()
        if terms.kl_elements is not None:
            self.average("train/kl_reference", terms.kl_elements, mask)
        if terms.behaviour is not None:
            self.average("train/behaviour_weight_mean", terms.behaviour, mask)
        if measure_gap:
            self.gap = max(self.gap or 0.0, logprob_gap(terms.new, terms.old, mask))
            self.average("train/logprob_gap_mean", (terms.new - terms.old).abs(), mask)

    def add_step(self, taken: Taken) -> None:
        """What became of the optimizer batch in progress."""
        if taken.outcome == Outcome.ABANDONED:
            return
        self.batches += 1
        self.overflows += taken.outcome == Outcome.OVERFLOW
        self.bad += taken.outcome == Outcome.NOT_FINITE
        if taken.outcome == Outcome.MADE:
            self.steps += 1
            self.loss += taken.loss
            self.grad_norm += taken.norm

    def add_staleness(self, updates: np.ndarray) -> None:
        """``updates`` int64 [m]: how many there were since each record was acted."""
        self.stalest = max(self.stalest or 0, int(updates.max()))
        values = torch.from_numpy(updates)
        self.average("train/staleness_mean", values, torch.ones_like(values, dtype=torch.bool))

    def over(self, world: World) -> UpdateTotals:
        """With the upper half summed over all ranks (the largest ``gap``)."""
        if world.size == 1:
            return self
        means = {name: found.cpu() for name, found in self.means.items()}
        sums = np.array([self.samples, self.flops])
        parts = world.gather((on_cpu(self.stats), self.value_loss, self.gap, self.stalest, sums, means))
        stats, values, gaps, stalest, added, every = zip(*parts, strict=True)
        samples, flops = np.sum(added, axis=0).tolist()
        names = dict.fromkeys(name for found in every for name in found)
        return replace(
            self, stats=add_stats(stats), value_loss=_total(values), gap=_largest(gaps), stalest=_largest(stalest),
            samples=int(samples), flops=flops,
            means={name: sum(found.get(name, torch.zeros(2)) for found in every) for name in names},
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        taken = max(self.steps, 1)
        return {
            "train/loss": self.loss / taken,
            "train/grad_norm": self.grad_norm / taken,
            "train/optimizer_steps": self.steps,
            "train/skipped_records": self.skipped,
            "train/bad_updates": self.bad,
            "train/overflows": self.overflows,
            "train/filtered_groups": self.filtered,
            "train/early_stops": self.early_stops,
            **({"train/value_loss": self.value_loss / max(self.batches, 1)} if self.value_loss is not None else {}),
            **({"train/value_grad_norm": self.value_grad_norm / taken} if self.value_loss is not None else {}),
            **({"train/staleness_max": self.stalest} if self.stalest is not None else {}),
            **{name: mean for name in self.means if (mean := self.mean(name)) is not None},
            **({"train/logprob_gap": self.gap} if self.gap is not None else {}),
            **(self.stats.metrics() if self.stats else {}),
        }


def add_stats(parts: Sequence[PolicyStats | None]) -> PolicyStats | None:
    """Their sum; None of none."""
    return functools.reduce(lambda a, b: a + b if a and b else a or b, parts)


def on_cpu(stats: PolicyStats | None) -> PolicyStats | None:
    return stats and PolicyStats(stats.sums.cpu(), stats.peak.cpu())


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
