"""What is minimised: the terms of the loss, for one optimizer batch and for its micro-batches.

| term | weight | default |
|---|---|---|
| policy loss, aggregated by ``loss_agg_func`` | 1 | |
| value loss, mean over rewards that count | 1 | with ``adv_type: gae`` |
| entropy, aggregated like the policy loss | −``entropy_bonus`` | off |
| KL towards the reference, aggregated like the policy loss | ``kl_beta``, unless ``use_kl_in_reward`` | off |
| −log-prob, mean over episodes with a positive return | ``positive_nll_coef`` | off |

The weights of elements are fixed by the optimizer batch (:mod:`embodied.algorithms.aggregation`), so that micro-batches
only bound memory. What depends on a whole sequence (``gspo``, ``off_policy_masking_delta``) is found in a pass without
gradients over the optimizer batch before; the proximal policy of ``tis`` in one before the iteration's first update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from embodied.algorithms import aggregation
from embodied.algorithms.importance import log_ratio, off_policy, sequence_level
from embodied.algorithms.kl import EXACT, full, make_kl, unbiased
from embodied.algorithms.layout import Counts, Layout, reward_mask
from embodied.algorithms.policy_loss import Anchor, PolicyLoss, make_loss
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

    counts: Counts  # of n
    mask: Tensor  # bool [n, M]
    weights: Tensor  # float32 [n, M]
    advantages: Tensor  # float32 [n, M]
    entropy_weights: Tensor  # float32 [n, M']
    value_targets: Tensor  # float32 [n, V], or [n, 0] without a value loss
    value_weights: Tensor  # float32, the same
    nll_weights: Tensor  # float32 [n, M], 0 without positive_nll_coef
    drift: Tensor  # float32 [n, 1], mean(lp − lp_old) over the record's sequence; 0 where nothing reads it
    proximal: Tensor  # float32 [n, M₀], log-probs when the update began; [n, 0] where nothing reads it

    def part(self, index: Tensor, device: torch.device) -> Elements:
        """Some of the records, on ``device``."""
        tensors = [field.name for field in fields(self) if field.name != "counts"]
        return Elements(
            self.counts.at(index).to(device), **{name: getattr(self, name)[index].to(device) for name in tensors}
        )


class Terms(NamedTuple):
    """One micro-batch's share of the loss, and what went into it."""

    policy: PolicyLoss
    policy_loss: Tensor  # []
    value_loss: Tensor  # []
    entropy: Tensor  # []
    entropy_weight: Tensor  # [], sum of the weights in ``entropy``
    positive_nll: Tensor  # []
    kl: Tensor  # []
    new: Tensor  # float32 [m, M], log-probs now
    old: Tensor  # float32 [m, M], at action time
    kl_elements: Tensor | None  # float32 [m, M], detached; None if no KL is in the loss
    behaviour: Tensor | None  # float32 [m, M], weights that correct for the acting policy; None if the loss has none


class Objective:
    """The loss that ``algorithm`` describes, for policies of ``spec``.

    Args:
        max_steps: longest possible episode, control steps (the constant of ``seq-mean-token-sum-norm``).

    Raises:
        ConfigError: the estimator needs values and the policy gives none, or not as many.
    """

    def __init__(self, spec: PolicySpec, algorithm: AlgorithmConfig, max_steps: int) -> None:
        self._algorithm, self._max_steps = algorithm, max_steps
        self.layout = Layout(spec.elements, spec.num_action_chunks)
        self._has_entropy = spec.entropy
        self._check(spec)
        self.has_value = algorithm.adv_type == "gae"
        if self.has_value:
            _check_value_head(spec, algorithm)
        self._loss = make_loss(algorithm.loss_type, dict(algorithm), algorithm.loss)
        masks = algorithm.off_policy_masking_delta is not None
        self.reads_sequences = self._loss.anchor is Anchor.SEQUENCE or masks
        self.reads_proximal = self._loss.anchor is Anchor.PROXIMAL
        self.kl_in_loss = algorithm.kl_beta > 0 and not algorithm.use_kl_in_reward
        self.exact_kl = algorithm.kl_beta > 0 and algorithm.kl_penalty_type == EXACT
        self._kl = None if algorithm.kl_penalty_type == EXACT else make_kl(algorithm.kl_penalty_type)
        self._value_loss = make_value_loss(algorithm.value_loss, algorithm.value_clip, algorithm.huber_delta)

    def _check(self, spec: PolicySpec) -> None:
        """Whether the policy offers what the algorithm asks of it."""
        algorithm = self._algorithm
        self.layout.check(algorithm.logprob_type, "algorithm.logprob_type")
        if spec.entropy:
            self.layout.check(algorithm.entropy_type, "algorithm.entropy_type")
        elif algorithm.entropy_bonus:
            raise ConfigError(
                f"algorithm.entropy_bonus is {algorithm.entropy_bonus}, and the policy gives no entropies",
                "set algorithm.entropy_bonus=0",
            )
        if algorithm.kl_beta and algorithm.kl_penalty_type == EXACT and not spec.distribution:
            raise ConfigError(
                f"algorithm.kl_penalty_type is {EXACT}, and the policy gives no distribution",
                "set algorithm.kl_penalty_type=low_var_kl",
            )

    def elements(self, batch: Batch, chosen: Tensor) -> Elements:
        """Masks and weights of the optimizer batch of the records ``chosen`` int64 [n]."""
        algorithm, layout = self._algorithm, self.layout
        counts, ids, mode = batch.counts.at(chosen), batch.sequence_ids[chosen], algorithm.loss_agg_func
        level = algorithm.logprob_type
        mask = layout.mask(counts, level)
        targets = torch.zeros(len(chosen), 0) if batch.value_targets is None else batch.value_targets[chosen]
        value_mask = reward_mask(counts.num_steps, layout.num_actions, algorithm.reward_type)[:, : targets.shape[1]]
        return Elements(
            counts,
            mask,
            aggregation.weights(mask, ids, mode, self._norm_constant(level)),
            layout.spread(batch.advantages[chosen], level),
            self._entropy_weights(counts, ids),
            targets,
            aggregation.weights(value_mask, ids, "token-mean"),
            self._nll_weights(batch, chosen, mask),
            torch.zeros(len(chosen), 1),
            torch.zeros(len(chosen), 0) if batch.proximal is None else batch.proximal[chosen],
        )

    def _entropy_weights(self, counts: Counts, ids: Tensor) -> Tensor:
        if not self._has_entropy:
            return torch.zeros(len(counts), 0)
        level, mode = self._algorithm.entropy_type, self._algorithm.loss_agg_func
        return aggregation.weights(self.layout.mask(counts, level), ids, mode, self._norm_constant(level))

    def _nll_weights(self, batch: Batch, chosen: Tensor, mask: Tensor) -> Tensor:
        if not self._algorithm.positive_nll_coef:
            return torch.zeros(mask.shape)
        positive = mask & batch.positive[chosen][:, None]
        return aggregation.weights(positive, batch.sequence_ids[chosen], "token-mean")

    def carries_gradient(self, elements: Elements) -> Tensor:
        """Which records change the gradient: bool [n]."""
        if self._algorithm.entropy_bonus or self.kl_in_loss or self.has_value:
            return torch.ones(len(elements.mask), dtype=torch.bool)
        return ((elements.advantages != 0) | (elements.nll_weights != 0)).any(dim=1)

    def log_ratio_sums(self, result: Evaluation, records: Mapping[str, Tensor], elements: Elements) -> Tensor:
        """``Σ (lp − lp_old)`` of each of m records, float [m]."""
        new, old = self._logprobs(result, records, elements)
        return log_ratio(new, old).sum(dim=1)

    def terms(
        self, result: Evaluation, records: Mapping[str, Tensor], elements: Elements, reference: Evaluation | None = None
    ) -> Terms:
        """The terms of m records; all of it on one device.

        Args:
            reference: what the reference says of the same records; None without a KL in the loss.
        """
        algorithm = self._algorithm
        new, old = self._logprobs(result, records, elements)
        acting, behaviour = self._acting(new, old, elements)
        policy = self._loss(new, acting, elements.advantages)
        weights = elements.weights if behaviour is None else elements.weights * behaviour
        if algorithm.off_policy_masking_delta is not None:
            dropped = off_policy(elements.advantages, elements.drift, algorithm.off_policy_masking_delta)
            weights = torch.where(dropped, 0.0, weights)
        kl = None if reference is None else self.kl(new, result, reference, elements.counts)
        if kl is not None and algorithm.unbiased_kl_estimate:
            kl = unbiased(kl, new, old)
        return Terms(
            policy,
            (policy.per_token * weights).sum(),
            self._value_term(result, records, elements),
            self._entropy_term(result, elements),
            elements.entropy_weights.sum(),
            -(new * elements.nll_weights).sum(),
            torch.zeros((), device=new.device) if kl is None else (kl * elements.weights).sum(),
            new,
            old,
            None if kl is None else kl.detach(),
            behaviour,
        )

    def _acting(self, new: Tensor, old: Tensor, elements: Elements) -> tuple[Tensor, Tensor | None]:
        """The log-probs around which the loss clips [m, M], and the weights of elements if they are not all 1."""
        if self._loss.anchor is Anchor.SEQUENCE:
            return sequence_level(new, elements.drift), None
        if not self.reads_proximal:
            return old, None
        proximal = self.layout.reduce(elements.proximal, elements.counts, self._algorithm.logprob_type)
        return proximal, self._loss.importance(proximal, old)

    def kl(self, logprobs: Tensor, result: Evaluation, reference: Evaluation, counts: Counts) -> Tensor:
        """KL of the policy towards the reference, float32 [m, M]; zero where nothing was executed.

        Args:
            logprobs: the policy's, at ``logprob_type`` [m, M].
            result: the policy's; read by ``kl_penalty_type: full`` alone.
            counts: of the m records.
        """
        level = self._algorithm.logprob_type
        if self._kl is not None:
            return self._kl(logprobs, self.layout.reduce(reference.logprobs, counts, level))
        assert result.distribution is not None
        assert reference.distribution is not None
        # The elements of a decision are drawn one by one, so that the KL of several is the sum of theirs.
        exact = full(result.distribution, reference.distribution)
        return self.layout.reduce(exact, counts, level)

    def kl_rewards(
        self, records: Mapping[str, Tensor], result: Evaluation, reference: Evaluation, counts: Counts
    ) -> tuple[Tensor, Tensor]:
        """What ``use_kl_in_reward`` takes from the rewards of m records, before ``β``: float32 [m, V], and the KL of
        the elements [m, M] that it is the sum of."""
        level = self._algorithm.logprob_type
        acted = self.layout.reduce(records["logprobs"], counts, level)
        kl = self.kl(acted, result, reference, counts)
        return self.layout.sum_to_rewards(kl, level, self._algorithm.reward_type), kl

    def _logprobs(self, result: Evaluation, records: Mapping[str, Tensor], elements: Elements) -> tuple[Tensor, Tensor]:
        """Log-probs now and at action time, at ``logprob_type``: float32 [m, M] each."""
        counts, level = elements.counts, self._algorithm.logprob_type
        new = self.layout.reduce(result.logprobs, counts, level)
        return new, self.layout.reduce(records["logprobs"], counts, level)

    def total(self, terms: Terms, kl_beta: float, value_only: bool = False) -> Tensor:
        """What is minimised, [].

        Args:
            kl_beta: present weight of the KL (``kl_ctrl`` may change it).
            value_only: the value loss alone (``critic_warmup_steps``).
        """
        if value_only:
            return terms.value_loss
        algorithm = self._algorithm
        regularisers = algorithm.positive_nll_coef * terms.positive_nll - algorithm.entropy_bonus * terms.entropy
        return terms.policy_loss + terms.value_loss + regularisers + kl_beta * terms.kl

    def _entropy_term(self, result: Evaluation, elements: Elements) -> Tensor:
        if not self._has_entropy or result.entropy is None:
            return torch.zeros((), device=elements.weights.device)
        entropy = self.layout.reduce(result.entropy, elements.counts, self._algorithm.entropy_type)
        return (entropy * elements.entropy_weights).sum()

    def _value_term(self, result: Evaluation, records: Mapping[str, Tensor], elements: Elements) -> Tensor:
        if not self.has_value:
            return torch.zeros((), device=elements.weights.device)
        assert result.value is not None
        loss = self._value_loss(result.value, records["value"], elements.value_targets)
        # Selected, not multiplied: what stands at steps that were not executed may be anything.
        return (torch.where(elements.value_weights > 0, loss, 0.0) * elements.value_weights).sum()

    def _norm_constant(self, level: str) -> float:
        if self._algorithm.unbiased_loss_max_tokens is not None:
            return self._algorithm.unbiased_loss_max_tokens
        return math.ceil(self._max_steps * (self.layout.width(level) / self.layout.num_actions))


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
