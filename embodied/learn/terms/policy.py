"""The policy loss that ``algorithm.loss_type`` names, summed over elements with the weights of ``loss_agg_func``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from embodied.algorithms.conformance.loss import check_loss
from embodied.algorithms.importance import not_finite, off_policy, sequence_level
from embodied.algorithms.metrics import STATS, logprob_gap, policy_stats, sum_and_count
from embodied.algorithms.policy_loss import Anchor, PolicyLoss, make_loss
from embodied.learn.batch import RECORDED
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share, Term

BAD_RATIOS = "train/bad_ratios"


@dataclass(frozen=True)
class Options:
    """Options of the policy term: keys of ``algorithm``, beside those that the loss itself takes."""

    logprob_type: str
    off_policy_masking_delta: float | None


class PolicyTerm(Term):
    """``Σ w · importance · loss``. Elements that ``off_policy_masking_delta`` drops stay in the denominators.

    Losses bound their log-ratios, infinite ones too. Where one that counts is not finite the share is NaN instead, so
    that the update is left out on all ranks.
    """

    needs: frozenset[Need] = frozenset()
    metrics = ("train/behaviour_weight_mean", "train/logprob_gap", "train/logprob_gap_mean", BAD_RATIOS, *STATS)
    surrogate = True

    def __init__(self, setup: Setup) -> None:
        algorithm = setup.algorithm
        self._layout, self._options, self._recomputed = setup.layout, setup.options(Options), setup.recompute
        self._name = algorithm.loss_type
        self._loss = make_loss(algorithm.loss_type, dict(algorithm), algorithm.loss)
        before = set() if self._recomputed else {Need.PROXIMAL}  # recomputed log-probs are those before the update
        needs = {Anchor.SEQUENCE: {Need.DRIFT}, Anchor.PROXIMAL: before}.get(self._loss.anchor, set())
        masks = self._options.off_policy_masking_delta is not None
        self.needs = frozenset(needs | ({Need.DRIFT} if masks else set()))

    @classmethod
    def make(cls, setup: Setup) -> Self:
        return cls(setup)

    def check(self, device: torch.device) -> None:
        """Calls the loss on made-up records. Raises ConfigError if it does not keep to its protocol."""
        width = self._layout.width(self._options.logprob_type)
        check_loss(self._loss, width, f"algorithm.loss_type {self._name}", device)

    def weights(self, batch: OptimizerBatch) -> Tensor:
        return batch.weights

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return (batch.advantages != 0).any(dim=1)

    def share(self, seen: Forward, weights: Tensor) -> Share:
        batch, delta = seen.batch, self._options.off_policy_masking_delta
        anchor, acting, importance = self._anchor(seen)
        policy = self._loss(seen.new, anchor, batch.advantages)
        if importance is not None:
            weights = weights * importance
        if delta is not None:
            weights = torch.where(off_policy(batch.advantages, batch.drift, delta), 0.0, weights)
        bad = not_finite(seen.new, (anchor, acting), batch.mask)
        loss = torch.where(bad == 0, (policy.per_token * weights).sum(), torch.nan)
        return self._measured(loss, policy, importance, seen, bad)

    def _anchor(self, seen: Forward) -> tuple[Tensor, Tensor, Tensor | None]:
        """The log-probs around which the loss forms its ratio [m, M], those that acted [m, M], and importance weights
        if they are not all 1."""
        batch = seen.batch
        if self._loss.anchor is Anchor.SEQUENCE:
            return sequence_level(seen.new, batch.drift), seen.old, None
        if self._loss.anchor is Anchor.ACTING:
            return seen.old, seen.old, None
        if self._recomputed:
            proximal, acting = seen.old, self._reduced(seen.records[RECORDED], batch)
        else:
            assert batch.proximal is not None
            proximal, acting = self._reduced(batch.proximal, batch), seen.old
        return proximal, acting, self._loss.importance(proximal, acting)

    def _reduced(self, logprobs: Tensor, batch: OptimizerBatch) -> Tensor:
        """[m, M₀] → [m, M]."""
        return self._layout.reduce(logprobs, batch.counts, self._options.logprob_type)

    def _measured(
        self, loss: Tensor, policy: PolicyLoss, importance: Tensor | None, seen: Forward, bad: Tensor
    ) -> Share:  # fmt: skip
        mask, means, largest = seen.batch.mask, {}, {BAD_RATIOS: bad}
        if importance is not None:
            means["train/behaviour_weight_mean"] = sum_and_count(importance, mask)
        if seen.untrained and not self._recomputed:  # else it was measured while they were recomputed
            new = seen.new.detach()
            largest["train/logprob_gap"] = logprob_gap(new, seen.old, mask)
            means["train/logprob_gap_mean"] = sum_and_count((new - seen.old).abs(), mask)
        return Share(loss, means, largest, stats=policy_stats(policy, mask))
