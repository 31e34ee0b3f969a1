"""The KL of the policy towards its reference, aggregated like the policy loss (``kl_beta``).

With ``use_kl_in_reward`` the KL stands in the rewards instead (:mod:`embodied.learn.score.score`), and there is no
term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from embodied.algorithms.kl import EXACT, full, make_kl, unbiased
from embodied.algorithms.layout import Counts
from embodied.algorithms.metrics import sum_and_count
from embodied.errors import ConfigError
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share, Term
from embodied.types import Evaluation


@dataclass(frozen=True)
class Options:
    """Options of the KL term: keys of ``algorithm``."""

    kl_penalty_type: str
    logprob_type: str
    unbiased_kl_estimate: bool


class ReferenceKl:
    """KL(policy ‖ reference) by ``kl_penalty_type``, element by element.

    Raises:
        ConfigError: ``kl_penalty_type`` is ``full``, and the policy gives no distribution.
    """

    def __init__(self, setup: Setup) -> None:
        options = setup.options(Options)
        self._layout, self._level = setup.layout, options.logprob_type
        self.exact = options.kl_penalty_type == EXACT
        self._estimate = None if self.exact else make_kl(options.kl_penalty_type)
        if self.exact and not setup.spec.distribution:
            raise ConfigError(
                f"algorithm.kl_penalty_type is {EXACT}, and the policy gives no distribution",
                "set algorithm.kl_penalty_type=low_var_kl",
            )

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.REFERENCE, Need.DISTRIBUTION} if self.exact else {Need.REFERENCE})

    def __call__(self, logprobs: Tensor, result: Evaluation, reference: Evaluation, counts: Counts) -> Tensor:
        """Returns the KL of each element, float32 [m, M]; zero where nothing was executed.

        Args:
            logprobs: the policy's, at ``logprob_type`` [m, M].
            result: the policy's; read by ``kl_penalty_type: full`` alone.
            counts: of the m records.
        """
        if self._estimate is not None:
            return self._estimate(logprobs, self._layout.reduce(reference.logprobs, counts, self._level))
        assert result.distribution is not None
        assert reference.distribution is not None
        # The elements of a decision are drawn one by one, so that the KL of several is the sum of theirs.
        exact = full(result.distribution, reference.distribution)
        return self._layout.reduce(exact, counts, self._level)


class KlTerm(Term):
    """``β · Σ w · KL``, with the present value of ``kl_coefficient`` as β."""

    metrics = ("train/kl_reference",)
    needs: frozenset[Need] = frozenset()

    def __init__(self, setup: Setup) -> None:
        self._coefficient, self._options = setup.kl_coefficient, setup.options(Options)
        self._kl = ReferenceKl(setup)
        self.needs = self._kl.needs

    @classmethod
    def make(cls, setup: Setup) -> Self | None:
        algorithm = setup.algorithm
        return cls(setup) if algorithm.kl_beta and not algorithm.use_kl_in_reward else None

    def weights(self, batch: OptimizerBatch) -> Tensor:
        return batch.weights

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return torch.ones(len(batch), dtype=torch.bool)

    def share(self, seen: Forward, weights: Tensor) -> Share:
        assert seen.reference is not None, "it is in needs"
        kl = self._kl(seen.new, seen.result, seen.reference, seen.batch.counts)
        if self._options.unbiased_kl_estimate:
            kl = unbiased(kl, seen.new, seen.old)
        measured = {"train/kl_reference": sum_and_count(kl, seen.batch.mask)}
        return Share(self._coefficient.value * (kl * weights).sum(), measured)
