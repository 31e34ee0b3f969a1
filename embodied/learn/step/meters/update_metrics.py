"""The metrics of an update, added up over its micro-batches and over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.metrics import PolicyStats, sum_and_count
from embodied.learn.step.engine import OptimizerStep, Outcome
from embodied.learn.terms.term import Share
from embodied.parallel.group import Group

T = TypeVar("T")


@dataclass
class UpdateMetrics:
    """Collects the ``train/`` metrics over the passes of one update. The upper half is this rank's, the lower half is
    the same on all ranks.

    What a term measures has its name from the term (:class:`embodied.learn.terms.term.Share`).
    """

    stats: PolicyStats | None = None  # statistics of the policy's ratios
    batch_stats: PolicyStats | None = None  # the same for the optimizer batch in progress
    means: dict[str, Tensor] = field(default_factory=dict)  # metric → float64 [2] on the host, sum and count or weight
    largest: dict[str, float] = field(default_factory=dict)  # metric → largest value seen, at least 0
    per_batch: dict[str, float] = field(default_factory=dict)  # metric → sum, shown as the mean over optimizer batches
    samples: int = 0  # records that went forward and backward, each time that they did
    records: int = 0  # records of the first epoch, each once
    flops: float = 0.0  # FLOPs of these passes; 0 if the policy does not count them

    loss: float = 0.0
    grad_norm: float = 0.0
    per_step: dict[str, float] = field(default_factory=dict)  # metric → sum, shown as the mean over optimizer steps
    steps: int = 0  # optimizer steps taken
    batches: int = 0  # optimizer batches with something to learn from
    skipped: int = 0  # records left out: no term gives them a gradient
    bad: int = 0  # updates left out: loss or gradient not finite
    overflows: int = 0  # updates left out: the loss was scaled too far for fp16
    filtered: int = 0  # groups left out by filter_rewards
    early_stops: int = 0  # epochs that ended early: the ratio passed early_stop_imp_ratio

    def average(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Add the elements of the metric ``name`` that ``mask`` keeps, both [m, M]."""
        self._add_to_mean(name, sum_and_count(values, mask))

    def _add_to_mean(self, name: str, found: Tensor) -> None:
        found = found.cpu()
        self.means[name] = found if name not in self.means else self.means[name] + found

    def mean(self, name: str) -> float | None:
        """Returns the mean of the metric ``name`` so far; None if no element was seen."""
        total, count = self.means[name].tolist() if name in self.means else (0.0, 0.0)
        return total / count if count else None

    def begin_batch(self) -> None:
        """Forget the measurements of the optimizer batch before."""
        self.batch_stats = None

    def too_far(self, limit: float | None, group: Group) -> bool:
        """Returns whether the optimizer batch in progress has a mean ratio beyond ``limit``; None = no limit. A
        collective of ``group``."""
        if limit is None:
            return False
        stats = add_stats(group.gather(on_cpu(self.batch_stats)))
        return stats is not None and stats.mean_ratio > limit

    def add(self, shares: Iterable[Share]) -> None:
        """Add what the terms have measured of one micro-batch. Waits for the device."""
        for share in shares:
            if share.stats is not None:
                self.stats = add_stats([self.stats, share.stats])
                self.batch_stats = add_stats([self.batch_stats, share.stats])
            for name, found in share.means.items():
                self._add_to_mean(name, found)
            for name, found in share.largest.items():
                self.largest[name] = max(self.largest.get(name, 0.0), found.item())
            for name, found in share.per_batch.items():
                self.per_batch[name] = self.per_batch.get(name, 0.0) + found.item()

    def add_to_steps(self, name: str, value: float) -> None:
        """Adds a value of the metric ``name`` for one optimizer step; the mean over steps is logged."""
        self.per_step[name] = self.per_step.get(name, 0.0) + value

    def add_step(self, taken: OptimizerStep) -> None:
        """Add the outcome of the optimizer batch in progress."""
        if taken.outcome == Outcome.ABANDONED:
            return
        self.batches += 1
        self.overflows += taken.outcome == Outcome.OVERFLOW
        self.bad += taken.outcome == Outcome.NOT_FINITE
        if taken.outcome == Outcome.MADE:
            self.steps += 1
            self.loss += taken.loss
            self.grad_norm += taken.norm

    def add_staleness(self, updates: Tensor) -> None:
        """Adds a micro-batch to the staleness metrics; ``updates`` int64 [m]: optimizer steps since each record was
        acted."""
        self.largest["train/staleness_max"] = max(self.largest.get("train/staleness_max", 0), int(updates.max()))
        self.average("train/staleness_mean", updates, torch.ones_like(updates, dtype=torch.bool))

    def over(self, group: Group) -> UpdateMetrics:
        """The metrics of all ranks: with the upper half added up, and the largest of ``largest``."""
        if group.size == 1:
            return self
        sums = np.array([self.samples, self.records, self.flops])
        parts = group.gather((on_cpu(self.stats), sums, self.means, self.largest, self.per_batch))
        stats, added, means, largest, per_batch = zip(*parts, strict=True)
        samples, records, flops = np.sum(added, axis=0).tolist()
        return replace(
            self, stats=add_stats(stats), samples=int(samples), records=int(records), flops=flops,
            means=_merged(means, _add), largest=_merged(largest, max), per_batch=_merged(per_batch, sum),
        )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """The ``train/`` metrics by name."""
        taken = max(self.steps, 1)
        return {
            "train/loss": self.loss / taken,
            "train/grad_norm": self.grad_norm / taken,
            "train/optimizer_steps": self.steps,
            "train/records": self.records,
            "train/skipped_records": self.skipped,
            "train/bad_updates": self.bad,
            "train/overflows": self.overflows,
            "train/filtered_groups": self.filtered,
            "train/early_stops": self.early_stops,
            **{name: total / max(self.batches, 1) for name, total in self.per_batch.items()},
            **{name: total / taken for name, total in self.per_step.items()},
            **self.largest,
            **{name: mean for name in self.means if (mean := self.mean(name)) is not None},
            **(self.stats.metrics() if self.stats else {}),
        }


def add_stats(parts: Sequence[PolicyStats | None]) -> PolicyStats | None:
    """Returns the sum of ``parts``; None if there is none."""
    return functools.reduce(lambda a, b: a + b if a and b else a or b, parts)


def on_cpu(stats: PolicyStats | None) -> PolicyStats | None:
    """Copies ratio statistics to the CPU."""
    return stats and PolicyStats(stats.sums.cpu(), stats.peak.cpu())


def _add(parts: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.add, parts)


def _merged(parts: Sequence[Mapping[str, T]], merge: Callable[[list[T]], T]) -> dict[str, T]:
    """Merges dictionaries by name: ``merge`` of the values that ``parts`` have under it, in the order of ranks."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: merge([part[name] for part in parts if name in part]) for name in names}
