"""The trainer: one iteration's records → optimizer steps.

The loss of an optimizer batch is ``Σ weight · loss`` over its elements with weights fixed before the first forward pass
(:mod:`embodied.algorithms.aggregation`), so micro-batches only bound memory, and records of advantage zero are left out
before the forward pass while the denominators stay those of the full batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms import aggregation, granularity
from embodied.algorithms.advantages import make_estimator
from embodied.algorithms.losses import make_loss
from embodied.algorithms.metrics import PolicyStats, logprob_gap, policy_stats
from embodied.errors import NumericalError
from embodied.learn.batch import Batch, gather, make_batch, optimizer_batches
from embodied.learn.optimizer import make_optimizer
from embodied.protocols import Policy
from embodied.schema import ActorConfig, AlgorithmConfig
from embodied.types import EnvSpec, EpisodeResult, Evaluation, Sampling


@dataclass
class UpdateTotals:
    """Sums over the micro-batches of one ``update``."""

    stats: PolicyStats | None = None
    loss: float = 0.0
    entropy: float = 0.0
    grad_norm: float = 0.0
    steps: int = 0  # optimizer steps taken
    batches: int = 0  # optimizer batches with something to learn from
    skipped: int = 0  # records left out: their advantage is zero
    bad: int = 0  # updates left out: loss or gradient not finite
    gap: float | None = None

    def metrics(self) -> dict[str, float]:
        taken = max(self.steps, 1)
        return {
            "train/loss": self.loss / taken,
            "train/entropy": self.entropy / max(self.batches, 1),
            "train/grad_norm": self.grad_norm / taken,
            "train/optimizer_steps": self.steps,
            "train/skipped_records": self.skipped,
            "train/bad_updates": self.bad,
            **({"train/logprob_gap": self.gap} if self.gap is not None else {}),
            **(self.stats.metrics() if self.stats else {}),
        }


@dataclass(frozen=True)
class Elements:
    """What is known of one optimizer batch before its first forward pass; all [n, M] at the level of the log-probs."""

    mask: Tensor  # bool
    weights: Tensor  # float32, sum to the denominator's inverse
    advantages: Tensor  # float32
    entropy_weights: Tensor  # float32 [n, M'] at the level of the entropies


@dataclass
class Trainer:
    """Owns optimizer and weight version; the policy is shared with the rollout.

    Args:
        max_steps: longest possible episode, control steps (the constant of ``seq-mean-token-sum-norm``).
    """

    policy: Policy
    env: EnvSpec
    actor: ActorConfig
    algorithm: AlgorithmConfig
    sampling: Sampling
    device: torch.device
    seed: int
    max_steps: int
    max_bad_updates: int
    weight_version: int = 0
    bad_in_a_row: int = field(default=0, init=False)
    last_finite: str = field(default="none yet", init=False)

    def __post_init__(self) -> None:
        algorithm = self.algorithm
        self.optimizer = make_optimizer(self.policy, self.actor.optim)
        self._parameters = [p for _, p in self.policy.named_parameters() if p.requires_grad]
        self._estimator = make_estimator(algorithm.adv_type, algorithm.adv_std_ddof)
        self._loss = make_loss(
            algorithm.loss_type, algorithm.clip_ratio_low, algorithm.clip_ratio_high, algorithm.clip_ratio_c
        )
        self._fields = [*self.env.obs, "task_id", *self.policy.spec.decision]

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int
    ) -> tuple[dict[str, float], Batch]:
        """Train on the records of ``results``, which stand in the slab's ``arrays``.

        Returns:
            metrics of the ``train/`` group, and the batch.

        Raises:
            NumericalError: ``max_bad_updates`` updates in a row were not finite.
        """
        batch = make_batch(arrays, results, self._estimator, self.algorithm.reward_type)
        totals = UpdateTotals()
        for epoch in range(self.algorithm.update_epoch):
            order = (self.seed, iteration, epoch)
            for chosen in optimizer_batches(len(batch), self.actor.global_batch_size, order):
                self._step(arrays, batch, chosen, totals)
        metrics = totals.metrics()
        metrics["train/lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["train/weight_version"] = self.weight_version
        return metrics, batch

    def _step(self, arrays: Mapping[str, np.ndarray], batch: Batch, chosen: Tensor, totals: UpdateTotals) -> None:
        """One optimizer batch: ``chosen`` int64 [n] indexes the batch's records."""
        elements = self._elements(batch, chosen)
        keep = self._carries_gradient(batch.advantages[chosen])
        totals.skipped += int((~keep).sum())
        if not keep.any():
            return
        measure_gap = totals.batches == 0  # the weights are still those that acted
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in keep.nonzero().flatten().split(self.actor.micro_batch_size):
            loss += self._micro_batch(arrays, batch, chosen[part], elements, part, totals, measure_gap)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.actor.optim.clip_grad).item()
        self._apply(loss, norm, totals)

    def _elements(self, batch: Batch, chosen: Tensor) -> Elements:
        spec, algorithm = self.policy.spec, self.algorithm
        chunk, dim = spec.num_action_chunks, spec.action_dim
        steps, ids, mode = batch.num_steps[chosen], batch.sequence_ids[chosen], algorithm.loss_agg_func
        level = algorithm.logprob_type
        mask = granularity.mask(steps, chunk, dim, level)
        entropy_mask = granularity.mask(steps, chunk, dim, algorithm.entropy_type)
        return Elements(
            mask,
            aggregation.weights(mask, ids, mode, self._norm_constant(level)),
            granularity.spread(batch.advantages[chosen], chunk, dim, level),
            aggregation.weights(entropy_mask, ids, mode, self._norm_constant(algorithm.entropy_type)),
        )

    def _norm_constant(self, level: str) -> float:
        spec = self.policy.spec
        per_step = {"token_level": spec.action_dim, "action_level": 1, "chunk_level": 1 / spec.num_action_chunks}
        return math.ceil(self.max_steps * per_step[level])

    def _carries_gradient(self, advantages: Tensor) -> Tensor:
        if self.algorithm.entropy_bonus:
            return torch.ones(len(advantages), dtype=torch.bool)
        return (advantages != 0).any(dim=1)

    def _micro_batch(
        self, arrays: Mapping[str, np.ndarray], batch: Batch, chosen: Tensor, elements: Elements, part: Tensor,
        totals: UpdateTotals, measure_gap: bool,
    ) -> float:  # fmt: skip
        """Forward and backward of some records; their share of the loss. ``part`` int64 [m] indexes the batch."""
        records = gather(arrays, self._fields, batch.rows[chosen.numpy()], self.device)
        result = self.policy.evaluate(records, self.sampling)
        steps, chunk = batch.num_steps[chosen].to(self.device), self.policy.spec.num_action_chunks
        old = granularity.reduce_logprobs(records["logprobs"], steps, chunk, self.algorithm.logprob_type)
        new = granularity.reduce_logprobs(result.logprobs, steps, chunk, self.algorithm.logprob_type)
        mask = elements.mask[part].to(self.device)
        policy = self._loss(new, old, elements.advantages[part].to(self.device))
        loss = (policy.per_token * elements.weights[part].to(self.device)).sum()
        entropy = self._entropy(result, steps, elements.entropy_weights[part].to(self.device))
        total = loss - self.algorithm.entropy_bonus * entropy
        total.backward()
        stats = policy_stats(policy, mask)
        totals.stats = stats if totals.stats is None else totals.stats + stats
        totals.entropy += entropy.item()
        if measure_gap:
            totals.gap = max(totals.gap or 0.0, logprob_gap(new, old, mask))
        return total.item()

    def _entropy(self, result: Evaluation, steps: Tensor, weights: Tensor) -> Tensor:
        chunk, level = self.policy.spec.num_action_chunks, self.algorithm.entropy_type
        return (granularity.reduce_entropy(result.entropy, steps, chunk, level) * weights).sum()

    def _apply(self, loss: float, norm: float, totals: UpdateTotals) -> None:
        totals.batches += 1
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._reject(loss, norm, totals)
            return
        self.optimizer.step()
        self.weight_version += 1
        self.bad_in_a_row = 0
        self.last_finite = f"loss {loss:.4g}, gradient norm {norm:.4g} at weight version {self.weight_version}"
        totals.steps += 1
        totals.loss += loss
        totals.grad_norm += norm

    def _reject(self, loss: float, norm: float, totals: UpdateTotals) -> None:
        """An update that is not finite is skipped and counted; too many in a row end the run."""
        self.optimizer.zero_grad(set_to_none=True)
        totals.bad += 1
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= self.max_bad_updates:
            raise NumericalError(
                f"loss {loss} and gradient norm {norm}: not finite for {self.bad_in_a_row} updates in a row; "
                f"last finite: {self.last_finite}",
                "lower actor.optim.lr, or set actor.model.precision=fp32; the last checkpoint is from before this",
            )
