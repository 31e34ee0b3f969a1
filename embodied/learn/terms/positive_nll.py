"""−log-prob of rewarded decisions: mean over elements of episodes with a positive return (``positive_nll_coef``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from embodied.algorithms import aggregation
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share, Term


@dataclass(frozen=True)
class Options:
    """Options of the NLL term of successful episodes: keys of ``algorithm``."""

    positive_nll_coef: float


class PositiveNllTerm(Term):
    """``−positive_nll_coef · Σ w · lp``, with weights of 0 in episodes that did not pay."""

    needs: frozenset[Need] = frozenset()
    metrics = ()

    def __init__(self, setup: Setup) -> None:
        self._options = setup.options(Options)

    @classmethod
    def make(cls, setup: Setup) -> Self | None:
        return cls(setup) if setup.algorithm.positive_nll_coef else None

    def weights(self, batch: OptimizerBatch) -> Tensor:
        return aggregation.weights(batch.mask & batch.positive[:, None], batch.sequence_ids, "token-mean")

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return (weights != 0).any(dim=1)

    def share(self, seen: Forward, weights: Tensor) -> Share:
        return Share(self._options.positive_nll_coef * -(seen.new * weights).sum())
