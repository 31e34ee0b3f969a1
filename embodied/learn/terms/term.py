"""Protocol of a loss term, and the data that it is given.

Shape letters: n records of an optimizer batch, m records of a forward pass, M elements of a record at
``algorithm.logprob_type``, M₀ log-probs of a record, V rewards of a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from embodied.algorithms import aggregation
from embodied.algorithms.kl import Coefficient
from embodied.algorithms.layout import Counts, Layout
from embodied.algorithms.metrics import PolicyStats
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.observe.metrics import Metric
from embodied.schema import AlgorithmConfig
from embodied.types import Evaluation, PolicySpec

Options = TypeVar("Options")


class Need(Enum):
    """Inputs that a term may need beside log-probs and advantages. The trainer computes only what some term needs."""

    REFERENCE = "the evaluation of the same records by the reference policy"
    DISTRIBUTION = "the log-probs of all choices, of the policy and of its reference"
    DRIFT = "the mean of lp − lp_old over the whole sequence of a record"
    PROXIMAL = "the log-probs of the policy when the update began"
    VALUES = "value targets, and a policy with a value head"


@dataclass(frozen=True)
class Setup:
    """What a run gives its loss terms to be made from: the policy's spec, the algorithm's keys, limits.

    Args:
        max_steps: longest possible episode, control steps (the constant of ``seq-mean-token-sum-norm``).
        kl_coefficient: the present weight of the KL, which ``algorithm.kl_ctrl`` may change between updates.
        recompute: the trainer computes the old log-probs anew (``rollout.recompute_logprobs``).

    Raises:
        ConfigError: the policy's decisions have no rewards of ``algorithm.reward_type``, or it computes no log-probs in
            ``algorithm.logprob_dtype``.
    """

    spec: PolicySpec
    algorithm: AlgorithmConfig
    max_steps: int
    kl_coefficient: Coefficient
    recompute: bool = False
    layout: Layout = field(init=False)
    rewards: Rewards = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout(self.spec.elements, self.spec.num_action_chunks))
        object.__setattr__(self, "rewards", Rewards(self.layout, self.algorithm.reward_type))
        wanted, there = self.algorithm.logprob_dtype, self.spec.logprob_dtypes
        if wanted not in there:
            raise ConfigError(
                f"algorithm.logprob_dtype is {wanted}, and the policy computes log-probs in {', '.join(there)}",
                f"set algorithm.logprob_dtype={there[0]}; a policy of logits may call embodied.logprobs.log_softmax "
                "and declare PolicySpec(…, logprob_dtypes=LOGPROB_DTYPES)",
            )

    def options(self, kind: type[Options]) -> Options:
        """The dataclass ``kind`` with the values of ``algorithm``'s keys of the same names."""
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        return kind(**{name: getattr(self.algorithm, name) for name in names})

    def weights(self, mask: Tensor, sequence_ids: Tensor, level: str) -> Tensor:
        """Weights by ``algorithm.loss_agg_func`` of elements at ``level``: bool [n, M] → float32 [n, M].

        Args:
            sequence_ids: of the records, int64 [n].
        """
        return aggregation.weights(mask, sequence_ids, self.algorithm.loss_agg_func, self._norm_constant(level))

    def _norm_constant(self, level: str) -> float:
        if self.algorithm.unbiased_loss_max_tokens is not None:
            return self.algorithm.unbiased_loss_max_tokens
        return math.ceil(self.max_steps * (self.layout.width(level) / self.layout.num_actions))


@dataclass(frozen=True)
class OptimizerBatch:
    """n records of an optimizer batch before its first forward pass: masks, weights, advantages, targets."""

    counts: Counts  # executed steps and lengths of the n records
    sequence_ids: Tensor  # int64 [n]
    mask: Tensor  # bool [n, M], which elements count
    weights: Tensor  # float32 [n, M], by loss_agg_func
    advantages: Tensor  # float32 [n, M]
    positive: Tensor  # bool [n], the episode has a return above 0
    drift: Tensor  # float32 [n, 1], mean(lp − lp_old) over the record's sequence; 0 until it is computed
    value_targets: Tensor | None  # float32 [n, V]; None: no term needs them
    proximal: Tensor | None  # float32 [n, M₀]; None: no term needs them
    of_terms: tuple[Tensor, ...] = ()  # float32 [n, …] each: what Term.weights gave
    elements: int = 0  # how many count in the whole optimizer batch, also after part()

    def __len__(self) -> int:
        return len(self.mask)

    def part(self, index: Tensor, device: torch.device) -> OptimizerBatch:
        """Selects the records ``index`` int64 [m], on ``device``."""

        def of(values: Tensor) -> Tensor:
            return values[index].to(device)

        return OptimizerBatch(
            self.counts.at(index).to(device), of(self.sequence_ids), of(self.mask), of(self.weights),
            of(self.advantages), of(self.positive), of(self.drift),
            None if self.value_targets is None else of(self.value_targets),
            None if self.proximal is None else of(self.proximal),
            tuple(of(weights) for weights in self.of_terms), self.elements,
        )  # fmt: skip


@dataclass(frozen=True)
class Forward:
    """m records of an optimizer batch after their forward pass, all of it on one device."""

    batch: OptimizerBatch  # facts about these m records
    records: Mapping[str, Tensor]  # fields that the policy has read, [m, …]
    result: Evaluation
    reference: Evaluation | None  # None: no term needs it, or the value head warms up
    new: Tensor  # float32 [m, M], log-probs now
    old: Tensor  # float32 [m, M], log-probs at action time: as recorded, or as the trainer has recomputed them
    untrained: bool  # the weights are still those that acted


@dataclass(frozen=True)
class Share:
    """One term's part of the loss of m records, and its metrics. Nothing here waits for the device."""

    loss: Tensor | None  # [], differentiable, with its coefficient and sign; None: the term only measures
    means: Mapping[str, Tensor] = field(default_factory=dict)  # metric → float64 [2], sum and count (or weight)
    largest: Mapping[str, Tensor] = field(default_factory=dict)  # metric → [], over all passes
    per_batch: Mapping[str, Tensor] = field(default_factory=dict)  # metric → [], added up in an optimizer batch
    stats: PolicyStats | None = None  # statistics of the policy's ratios


class Term(Protocol):
    """One term of the loss: ``coefficient · Σ weights · loss`` over the elements of an optimizer batch.

    Each term of the repository has a classmethod ``make(setup)``. It gives None if the configuration does not ask for
    the term. It raises ConfigError if the policy does not offer what the term needs. One of the user's is a dataclass
    (:mod:`embodied.learn.terms.custom`). A term whose gradient is not that of its value, because it detaches a factor
    on purpose, has an attribute ``surrogate = True``.
    """

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that the term needs beside log-probs and advantages."""

    @property
    def metrics(self) -> Sequence[str | Metric]:
        """All metrics that :meth:`share` may measure: rows of its own, and names that have a row already."""
        ...

    def weights(self, batch: OptimizerBatch) -> Tensor:
        """Weights of the elements that this term counts, float32 [n, …]. They hold the denominators of the whole
        optimizer batch, so that micro-batches only bound memory."""
        ...

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        """Returns the mask of records that get a gradient from this term, bool [n]."""
        ...

    def share(self, seen: Forward, weights: Tensor) -> Share:
        """Returns the part of m records in the loss, and metrics.

        Args:
            weights: those of the m records.
        """
        ...
