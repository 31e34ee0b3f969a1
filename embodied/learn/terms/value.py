"""The loss of the value head: the mean over the rewards that count (``adv_type: gae``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from embodied.algorithms import aggregation
from embodied.algorithms.advantages.value import make_value_loss
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share, Term
from embodied.types import PolicySpec


@dataclass(frozen=True)
class Options:
    """Options of the value term: keys of ``algorithm``."""

    adv_type: str
    value_loss: str
    value_clip: float | None
    huber_delta: float


class ValueTerm(Term):
    """Value loss. Raises ConfigError if the policy has no value head, or one with another number of values.

    The denominator is the number of rewards, whatever ``loss_agg_func`` says of the policy's elements.
    """

    needs = frozenset({Need.VALUES})
    metrics = ("train/value_loss",)

    def __init__(self, setup: Setup) -> None:
        self._options, self._rewards = setup.options(Options), setup.rewards
        _check_value_head(setup.spec, self._options.adv_type, setup.rewards)
        self._loss = make_value_loss(self._options.value_loss, self._options.value_clip, self._options.huber_delta)

    @classmethod
    def make(cls, setup: Setup) -> Self | None:
        return cls(setup) if setup.algorithm.adv_type == "gae" else None

    def weights(self, batch: OptimizerBatch) -> Tensor:
        """Returns the weights of the rewards, float32 [n, V]."""
        return aggregation.weights(self._rewards.mask(batch.counts), batch.sequence_ids, "token-mean")

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return torch.ones(len(batch), dtype=torch.bool)

    def share(self, seen: Forward, weights: Tensor) -> Share:
        assert seen.result.value is not None
        assert seen.batch.value_targets is not None
        loss = self._loss(seen.result.value, seen.records["value"], seen.batch.value_targets)
        # Selected, not multiplied: what stands at steps that were not executed may be anything.
        total = (torch.where(weights > 0, loss, 0.0) * weights).sum()
        return Share(total, per_batch={"train/value_loss": total.detach()})


def _check_value_head(spec: PolicySpec, adv_type: str, rewards: Rewards) -> None:
    if "value" not in spec.decision:
        raise ConfigError(
            f"algorithm.adv_type {adv_type} needs values, and the policy has no value head",
            "set actor.model.value_head=true (algorithm=ppo does), or another algorithm.adv_type",
        )
    (got,) = spec.decision["value"].shape
    if got != rewards.width:
        raise ConfigError(
            f"the value head gives {got} values a record and algorithm.reward_type {rewards.reward_type} "
            f"has {rewards.width} rewards",
            "set actor.model.value_type=${algorithm.reward_type}",
        )
