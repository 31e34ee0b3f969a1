"""The entropy of the policy, aggregated like the policy loss: measured always, rewarded with ``entropy_bonus``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from embodied.errors import ConfigError, SpecMismatchError
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share, Term


@dataclass(frozen=True)
class Options:
    """Options of the entropy term: keys of ``algorithm``."""

    entropy_bonus: float
    entropy_type: str


class EntropyTerm(Term):
    """``−entropy_bonus · Σ w · entropy``. With a bonus of 0 the entropy is measured and has no gradient.

    Raises ConfigError if the policy does not count its entropies at ``entropy_type``.
    """

    needs: frozenset[Need] = frozenset()
    metrics = ("train/entropy",)

    def __init__(self, setup: Setup) -> None:
        self._setup, self._options = setup, setup.options(Options)
        setup.layout.check(self._options.entropy_type, "algorithm.entropy_type")

    @classmethod
    def make(cls, setup: Setup) -> Self | None:
        """Makes the term; None if the policy gives no entropies, or nobody asks for them.

        Raises:
            ConfigError: there is a bonus for entropies that the policy does not give.
        """
        if setup.spec.entropy:
            asked = setup.algorithm.calculate_entropy or setup.algorithm.entropy_bonus
            return cls(setup) if asked else None
        if setup.algorithm.entropy_bonus:
            raise ConfigError(
                f"algorithm.entropy_bonus is {setup.algorithm.entropy_bonus}, and the policy gives no entropies",
                "set algorithm.entropy_bonus=0",
            )
        return None

    def weights(self, batch: OptimizerBatch) -> Tensor:
        """Returns the weights, float32 [n, M'] with M' elements of a record at ``entropy_type``."""
        level = self._options.entropy_type
        return self._setup.weights(self._setup.layout.mask(batch.counts, level), batch.sequence_ids, level)

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return torch.full((len(batch),), self._options.entropy_bonus > 0)

    def share(self, seen: Forward, weights: Tensor) -> Share:
        values, bonus = seen.result.entropy, self._options.entropy_bonus
        if values is None:
            raise SpecMismatchError(
                "entropy of evaluate(): got none, and PolicySpec.entropy is True",
                "give float32 [B, M₀] in Evaluation.entropy, or declare PolicySpec(…, entropy=False)",
            )
        entropy = (self._setup.layout.reduce(values, seen.batch.counts, self._options.entropy_type) * weights).sum()
        measured = {"train/entropy": torch.stack([entropy.detach(), weights.sum()]).double()}
        return Share(-bonus * entropy if bonus else None, measured)
