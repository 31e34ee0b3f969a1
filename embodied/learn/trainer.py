"""The trainer: one iteration's records → optimizer steps.

The loss of an optimizer batch is ``Σ weight · loss`` over its elements with weights fixed before the first forward pass
(:mod:`embodied.algorithms.aggregation`), so micro-batches only bound memory, and records of advantage zero are left out
before the forward pass while the denominators stay those of the full batch. The terms of the loss are in
:mod:`embodied.learn.objective`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.aggregation import sequence_means
from embodied.algorithms.estimators import make_estimator
from embodied.algorithms.metrics import PolicyStats, logprob_gap, policy_stats
from embodied.errors import NumericalError
from embodied.learn.batch import Batch, gather, make_batch, optimizer_batches, within_bounds
from embodied.learn.objective import Elements, Objective, Terms
from embodied.learn.optimizer import make_optimizer
from embodied.learn.reference import Reference
from embodied.protocols import Policy
from embodied.schema import ActorConfig, AlgorithmConfig
from embodied.types import EnvSpec, EpisodeResult, Sampling


@dataclass
class UpdateTotals:
    """Sums over the micro-batches of one ``update``."""

    stats: PolicyStats | None = None
    loss: float = 0.0
    value_loss: float | None = None  # None: no value head is trained
    kl: float | None = None  # None: there is no reference
    entropy: float = 0.0
    grad_norm: float = 0.0
    steps: int = 0  # optimizer steps taken
    batches: int = 0  # optimizer batches with something to learn from
    skipped: int = 0  # records left out: their advantage is zero
    bad: int = 0  # updates left out: loss or gradient not finite
    filtered: int = 0  # groups left out by filter_rewards
    early_stops: int = 0  # epochs that ended early: the ratio passed early_stop_imp_ratio
    gap: float | None = None
    batch_stats: PolicyStats | None = None  # of the optimizer batch in progress

    def begin_batch(self) -> None:
        self.batch_stats = None

    def add(self, terms: Terms, mask: Tensor, measure_gap: bool) -> None:
        """A micro-batch; ``mask`` bool [m, M] says which of its elements count."""
        stats = policy_stats(terms.policy, mask)
        self.batch_stats = stats if self.batch_stats is None else self.batch_stats + stats
        self.stats = stats if self.stats is None else self.stats + stats
        self.entropy += terms.entropy.item()
        if terms.value_loss.requires_grad:
            self.value_loss = (self.value_loss or 0.0) + terms.value_loss.item()
        if terms.kl.requires_grad:
            self.kl = (self.kl or 0.0) + terms.kl.item()
        if measure_gap:
            self.gap = max(self.gap or 0.0, logprob_gap(terms.new, terms.old, mask))

    def metrics(self) -> dict[str, float]:
        taken = max(self.steps, 1)
        return {
            "train/loss": self.loss / taken,
            "train/entropy": self.entropy / max(self.batches, 1),
            "train/grad_norm": self.grad_norm / taken,
            "train/optimizer_steps": self.steps,
            "train/skipped_records": self.skipped,
            "train/bad_updates": self.bad,
            "train/filtered_groups": self.filtered,
            "train/early_stops": self.early_stops,
            **({"train/value_loss": self.value_loss / max(self.batches, 1)} if self.value_loss is not None else {}),
            **({"train/kl_reference": self.kl / max(self.batches, 1)} if self.kl is not None else {}),
            **({"train/logprob_gap": self.gap} if self.gap is not None else {}),
            **(self.stats.metrics() if self.stats else {}),
        }


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
        self._estimator = make_estimator(
            algorithm.adv_type, algorithm.adv_std_ddof, algorithm.gamma, algorithm.gae_lambda,
            algorithm.normalize_advantages,
        )  # fmt: skip
        self._objective = Objective(self.policy.spec, algorithm, self.max_steps)
        self._reference = Reference(self.policy) if algorithm.kl_beta else None
        self._fields = [*self.env.obs, "task_id", *self.policy.spec.decision]

    def state_dict(self) -> dict[str, Any]:
        """Where training stands beyond parameters and optimizer: what a checkpoint keeps (embodied/learn/state.py).

        The KL reference is not in it: it is the policy as it was built (:class:`embodied.learn.reference.Reference`).
        """
        return {name: getattr(self, name) for name in ("weight_version", "bad_in_a_row", "last_finite")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        for name in self.state_dict():
            setattr(self, name, state[name])

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int
    ) -> tuple[dict[str, float], Batch]:
        """Train on the records of ``results``, which stand in the slab's ``arrays``.

        Returns:
            metrics of the ``train/`` group, and the batch of all episodes (``filter_rewards`` may train on fewer).

        Raises:
            NumericalError: ``max_bad_updates`` updates in a row were not finite.
        """
        batch = self._batch(arrays, results)
        kept = self._kept(results)
        totals = UpdateTotals(filtered=len({r.episode.group_id for r in results} - {r.episode.group_id for r in kept}))
        if kept:
            self._epochs(arrays, batch if len(kept) == len(results) else self._batch(arrays, kept), iteration, totals)
        metrics = totals.metrics()
        metrics["train/lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["train/weight_version"] = self.weight_version
        if batch.explained_variance is not None:
            metrics["train/explained_variance"] = batch.explained_variance
        return metrics, batch

    def _batch(self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult]) -> Batch:
        return make_batch(arrays, results, self._estimator, self.algorithm.reward_type, self._objective.has_value)

    def _kept(self, results: Sequence[EpisodeResult]) -> Sequence[EpisodeResult]:
        algorithm = self.algorithm
        if not algorithm.filter_rewards:
            return results
        return within_bounds(results, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)

    def _epochs(
        self, arrays: Mapping[str, np.ndarray], batch: Batch, iteration: int, totals: UpdateTotals
    ) -> None:  # fmt: skip
        for epoch in range(self.algorithm.update_epoch):
            order = (self.seed, iteration, epoch)
            for chosen in optimizer_batches(len(batch), self.actor.global_batch_size, order):
                if not self._step(arrays, batch, chosen, totals):
                    totals.early_stops += 1
                    break

    def _step(self, arrays: Mapping[str, np.ndarray], batch: Batch, chosen: Tensor, totals: UpdateTotals) -> bool:
        """One optimizer batch: ``chosen`` int64 [n] indexes the batch's records. False: stop the epoch here."""
        elements = self._objective.elements(batch, chosen)
        keep = self._objective.carries_gradient(elements)
        totals.skipped += int((~keep).sum())
        if not keep.any():
            return True
        totals.begin_batch()
        if self._objective.reads_sequences:
            elements = self._with_drift(arrays, batch, chosen, elements, keep)
        measure_gap = totals.batches == 0  # the weights are still those that acted
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for part in keep.nonzero().flatten().split(self.actor.micro_batch_size):
            rows = batch.rows[chosen[part].numpy()]
            loss += self._micro_batch(arrays, rows, elements.part(part, self.device), totals, measure_gap)
        if self._warming_up:
            self._keep_value_gradients_only()
        if self._too_far(totals):
            self.optimizer.zero_grad(set_to_none=True)
            return False
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.actor.optim.clip_grad).item()
        self._apply(loss, norm, totals)
        return True

    def _with_drift(
        self, arrays: Mapping[str, np.ndarray], batch: Batch, chosen: Tensor, elements: Elements, keep: Tensor
    ) -> Elements:
        """The elements with ``mean(lp − lp_old)`` of the sequences trained on, from a pass without gradients."""
        ids, sums = batch.sequence_ids[chosen], torch.zeros(len(chosen))
        read = torch.isin(ids, ids[keep]).nonzero().flatten()
        with torch.no_grad():
            for part in read.split(self.actor.micro_batch_size):
                records = gather(arrays, self._fields, batch.rows[chosen[part].numpy()], self.device)
                result = self.policy.evaluate(records, self.sampling)
                own = elements.part(part, self.device)
                sums[part] = self._objective.log_ratio_sums(result, records, own).float().cpu()
        return replace(elements, drift=sequence_means(sums, elements.mask, ids))

    def _too_far(self, totals: UpdateTotals) -> bool:
        """Whether the optimizer batch in progress has a mean ratio beyond ``early_stop_imp_ratio``."""
        limit = self.algorithm.early_stop_imp_ratio
        return limit is not None and totals.batch_stats is not None and totals.batch_stats.mean_ratio > limit

    def _micro_batch(
        self, arrays: Mapping[str, np.ndarray], rows: np.ndarray, elements: Elements, totals: UpdateTotals,
        measure_gap: bool,
    ) -> float:  # fmt: skip
        """Forward and backward of the records in ``rows`` int64 [m]; their share of the loss."""
        records = gather(arrays, self._fields, rows, self.device)
        reference = self._reference_logprobs(records)
        terms = self._objective.terms(self.policy.evaluate(records, self.sampling), records, elements, reference)
        total = self._objective.total(terms, value_only=self._warming_up)
        total.backward()
        totals.add(terms, elements.mask, measure_gap)
        return total.item()

    def _reference_logprobs(self, records: Mapping[str, Tensor]) -> Tensor | None:
        """Of the recorded tokens, float32 [m, T]; None without ``kl_beta``."""
        if self._reference is None:
            return None
        with self._reference.acting():
            return self.policy.evaluate(records, self.sampling).logprobs

    @property
    def _warming_up(self) -> bool:
        """Whether the next optimizer step trains the value head alone."""
        return self._objective.has_value and self.weight_version < self.algorithm.critic_warmup_steps

    def _keep_value_gradients_only(self) -> None:
        for name, parameter in self.policy.named_parameters():
            if not name.startswith("value_head"):
                parameter.grad = None

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
