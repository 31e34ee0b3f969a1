"""What is minimised: the terms of the loss, for one optimizer batch and for its micro-batches.

``loss = Σ weight · policy loss + Σ value weight · value loss − entropy_bonus · Σ entropy weight · entropy``, with all
weights fixed by the optimizer batch (:mod:`embodied.algorithms.aggregation`), so that micro-batches only bound memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from embodied.algorithms import aggregation, granularity
from embodied.algorithms.losses import PolicyLoss, make_loss
from embodied.algorithms.value import make_value_loss
from embodied.errors import ConfigError
from embodied.learn.batch import Batch
from embodied.schema import AlgorithmConfig
from embodied.types import Evaluation, PolicySpec


@dataclass(frozen=True)
class Elements:
    """What is known of the n records of an optimizer batch before its first forward pass.

    M elements of a record at the level of the log-probs, M' at that of the entropies, V at that of the rewards.
    """

    num_steps: Tensor  # int64 [n]
    mask: Tensor  # bool [n, M]
    weights: Tensor  # float32 [n, M]
    advantages: Tensor  # float32 [n, M]
    entropy_weights: Tensor  # float32 [n, M']
    value_targets: Tensor  # float32 [n, V], or [n, 0] without a value loss
    value_weights: Tensor  # float32, the same

    def part(self, index: Tensor, device: torch.device) -> Elements:
        """Some of the records, on ``device``."""
        return Elements(**{field.name: getattr(self, field.name)[index].to(device) for field in fields(self)})


class Terms(NamedTuple):
    """One micro-batch's share of the loss, and what went into it."""

    policy: PolicyLoss
    policy_loss: Tensor  # []
    value_loss: Tensor  # []
    entropy: Tensor  # []
    new: Tensor  # float32 [m, M], log-probs now
    old: Tensor  # float32 [m, M], at action time


class Objective:
    """The loss that ``algorithm`` describes, for policies of ``spec``.

    Args:
        max_steps: longest possible episode, control steps (the constant of ``seq-mean-token-sum-norm``).

    Raises:
        ConfigError: the estimator needs values and the policy gives none, or not as many.
    """

    def __init__(self, spec: PolicySpec, algorithm: AlgorithmConfig, max_steps: int) -> None:
        self._spec, self._algorithm, self._max_steps = spec, algorithm, max_steps
        self.has_value = algorithm.adv_type == "gae"
        if self.has_value:
            _check_value_head(spec, algorithm)
        self._loss = make_loss(
            algorithm.loss_type, algorithm.clip_ratio_low, algorithm.clip_ratio_high, algorithm.clip_ratio_c
        )
        self._value_loss = make_value_loss(algorithm.value_loss, algorithm.value_clip, algorithm.huber_delta)

    def elements(self, batch: Batch, chosen: Tensor) -> Elements:
        """Masks and weights of the optimizer batch of the records ``chosen`` int64 [n]."""
        algorithm, spec = self._algorithm, self._spec
        chunk, dim = spec.num_action_chunks, spec.action_dim
        steps, ids, mode = batch.num_steps[chosen], batch.sequence_ids[chosen], algorithm.loss_agg_func
        level = algorithm.logprob_type
        mask = granularity.mask(steps, chunk, dim, level)
        entropy_mask = granularity.mask(steps, chunk, dim, algorithm.entropy_type)
        targets = torch.zeros(len(chosen), 0) if batch.value_targets is None else batch.value_targets[chosen]
        value_mask = granularity.mask(steps, chunk, dim, algorithm.reward_type)[:, : targets.shape[1]]
        return Elements(
            steps,
            mask,
            aggregation.weights(mask, ids, mode, self._norm_constant(level)),
            granularity.spread(batch.advantages[chosen], chunk, dim, level),
            aggregation.weights(entropy_mask, ids, mode, self._norm_constant(algorithm.entropy_type)),
            targets,
            aggregation.weights(value_mask, ids, "token-mean"),
        )

    def carries_gradient(self, advantages: Tensor) -> Tensor:
        """Which records [n, V] change the gradient: bool [n]."""
        if self._algorithm.entropy_bonus or self.has_value:
            return torch.ones(len(advantages), dtype=torch.bool)
        return (advantages != 0).any(dim=1)

    def terms(self, result: Evaluation, records: Mapping[str, Tensor], elements: Elements) -> Terms:
        """The terms of m records; all of it on one device."""
        steps, chunk, level = elements.num_steps, self._spec.num_action_chunks, self._algorithm.logprob_type
        old = granularity.reduce_logprobs(records["logprobs"], steps, chunk, level)
        new = granularity.reduce_logprobs(result.logprobs, steps, chunk, level)
        entropy = granularity.reduce_entropy(result.entropy, steps, chunk, self._algorithm.entropy_type)
        policy = self._loss(new, old, elements.advantages)
        return Terms(
            policy,
            (policy.per_token * elements.weights).sum(),
            self._value_term(result, records, elements),
            (entropy * elements.entropy_weights).sum(),
            new,
            old,
        )

    def total(self, terms: Terms, value_only: bool = False) -> Tensor:
        """What is minimised, []. With ``value_only`` the value loss alone (``critic_warmup_steps``)."""
        if value_only:
            return terms.value_loss
        return terms.policy_loss + terms.value_loss - self._algorithm.entropy_bonus * terms.entropy

    def _value_term(self, result: Evaluation, records: Mapping[str, Tensor], elements: Elements) -> Tensor:
        if not self.has_value:
            return torch.zeros((), device=elements.weights.device)
        assert result.value is not None
        loss = self._value_loss(result.value, records["value"], elements.value_targets)
        # Selected, not multiplied: what stands at steps that were not executed may be anything.
        return (torch.where(elements.value_weights > 0, loss, 0.0) * elements.value_weights).sum()

    def _norm_constant(self, level: str) -> float:
        spec = self._spec
        per_step = {"token_level": spec.action_dim, "action_level": 1, "chunk_level": 1 / spec.num_action_chunks}
        return math.ceil(self._max_steps * per_step[level])


def _check_value_head(spec: PolicySpec, algorithm: AlgorithmConfig) -> None:
    if "value" not in spec.decision:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} needs values, and the policy has no value head",
            "set actor.model.value_head=true (algorithm=ppo does), or another algorithm.adv_type",
        )
    expected = 1 if algorithm.reward_type == "chunk_level" else spec.num_action_chunks
    (got,) = spec.decision["value"].shape
    if got != expected:
        raise ConfigError(
            f"the value head gives {got} values a record and algorithm.reward_type {algorithm.reward_type} "
            f"has {expected} rewards",
            "set actor.model.value_type=${algorithm.reward_type}",
        )
