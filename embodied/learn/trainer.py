"""The trainer: one iteration's records → optimizer steps.

The loss of an optimizer batch is ``Σ weight · loss`` over its elements with weights fixed before the first forward pass
(:mod:`embodied.algorithms.aggregation`), so micro-batches only bound memory, and records of advantage zero are left out
before the forward pass while the denominators stay those of the full batch. The terms of the loss are in
:mod:`embodied.learn.objective`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms import granularity
from embodied.algorithms.aggregation import sequence_means
from embodied.algorithms.estimators import make_estimator
from embodied.algorithms.kl import make_coefficient
from embodied.distributed import World
from embodied.errors import NumericalError
from embodied.learn import shaping
from embodied.learn.batch import Batch, gather, make_batch, micro_batches, optimizer_batches, within_bounds
from embodied.learn.freeze import value_head_only
from embodied.learn.loss_scale import LossScale
from embodied.learn.objective import Elements, Objective
from embodied.learn.optimizer import Schedule, make_optimizer
from embodied.learn.parallel import Parallel, Replicas
from embodied.learn.reference import Average, OtherWeights, Reference
from embodied.learn.totals import UpdateTotals, add_stats, on_cpu
from embodied.protocols import CountsFlops, Policy
from embodied.schema import ActorConfig, AlgorithmConfig, RewardConfig
from embodied.types import EnvSpec, EpisodeResult, Evaluation, Sampling, Start


@dataclass
class Trainer:
    """Owns optimizer and weight version; the policy is shared with the rollout.

    Args:
        max_steps: longest possible episode, control steps (the constant of ``seq-mean-token-sum-norm``).
        iterations: of the run, what shares of the learning rate's schedule refer to.
        peak_flops: FLOP/s that the device could do; None: unknown.
        parallel: how ranks share the policy; None = one process.
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
    reward: RewardConfig = field(default_factory=RewardConfig)
    iterations: int = 1
    peak_flops: float | None = None
    samples: int = field(default=0, init=False)  # records that the last update trained on, once an epoch
    flops: float = field(default=0.0, init=False)  # of that; 0 if the policy does not say
    parallel: Parallel | None = None
    bad_in_a_row: int = field(default=0, init=False)
    last_finite: str = field(default="none yet", init=False)

    def __post_init__(self) -> None:
        algorithm = self.algorithm
        self.optimizer = make_optimizer(self.policy, self.actor.optim)
        self.loss_scale = LossScale.of(self.actor)
        self._parallel = self.parallel or Replicas(self.policy, World())
        self._world = self._parallel.world
        self._filler = np.zeros(0, np.int64)  # slab row of any of this rank's records
        self._estimator = make_estimator(
            algorithm.adv_type, algorithm.adv_std_ddof, algorithm.gamma, algorithm.gae_lambda,
            algorithm.normalize_advantages,
        )  # fmt: skip
        self._objective = Objective(self.policy.spec, algorithm, self.max_steps)
        self._reference = Reference(self.policy) if algorithm.kl_beta else None
        control = algorithm.kl_ctrl
        self._kl_coefficient = make_coefficient(algorithm.kl_beta, control.type, control.target_kl, control.horizon)
        self._schedule = Schedule(self.actor.optim, self.actor.lr_sched, self.iterations)
        self._average = Average(self.policy) if self.actor.optim.ema_decay is not None else None
        self._fields = [*self.env.obs, "task_id", *self.policy.spec.decision]

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None = None,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        """Train on the records of ``results``, which stand in the slab's ``arrays`` (of each rank its own). All ranks
        call it, and all decide the same: what depends on data is summed over ranks first.

        Args:
            iteration: from 0.
            baselines: the return of a greedy episode from each start (``adv_type: remax``).

        Returns:
            metrics of the ``train/`` group, and the batch of all episodes (``filter_rewards`` may train on fewer).

        Raises:
            NumericalError: ``max_bad_updates`` updates in a row were not finite.
        """
        self._reset_reference(iteration)
        own = [result for result in results if result.rank == self._world.rank]
        self._filler = np.asarray(own[0].rows[:1], np.int64)
        kept = self._kept(results)
        totals = UpdateTotals(filtered=len({r.episode.group_id for r in results} - {r.episode.group_id for r in kept}))
        penalties = self._penalties(arrays, own, totals)
        batch = self._batch(arrays, results, penalties, baselines)
        if kept:
            trained = batch if len(kept) == len(results) else self._batch(arrays, kept, penalties, baselines)
            self._epochs(arrays, self._with_proximal(arrays, trained), iteration, totals)
        totals = totals.over(self._world)
        metrics = totals.metrics()
        self.samples, self.flops = totals.samples, totals.flops
        if (kl := totals.mean("train/kl_reference")) is not None:
            metrics["train/kl_beta"] = self._kl_coefficient.value
            self._kl_coefficient.update(kl, len(results))
        metrics["train/lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["train/weight_version"] = self.weight_version
        if self.loss_scale.enabled:
            metrics["train/loss_scale"] = self.loss_scale.value
        if batch.explained_variance is not None:
            metrics["train/explained_variance"] = batch.explained_variance
        return metrics, batch

    def state_dict(self) -> dict[str, Any]:
        """What an update depends on beside policy and optimizer, for checkpoints (embodied/learn/state.py): numbers and
        tensors (not copies) by name. Which names there are is a function of the configuration."""
        state: dict[str, Any] = {
            "weight_version": self.weight_version,
            "bad_in_a_row": self.bad_in_a_row,
            "last_finite": self.last_finite,
            "kl_beta": self._kl_coefficient.value,
        }
        if self.loss_scale.enabled:
            state["loss_scale"] = self.loss_scale.state_dict()
        for kind, weights in self._other_weights().items():
            state |= {f"{kind}.{name}": tensor for name, tensor in weights.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.weight_version = int(state["weight_version"])
        self.bad_in_a_row = int(state["bad_in_a_row"])
        self.last_finite = str(state["last_finite"])
        self._kl_coefficient.value = float(state["kl_beta"])
        if self.loss_scale.enabled:
            self.loss_scale.load_state_dict(state["loss_scale"])
        for kind, weights in self._other_weights().items():
            own = {name.partition(".")[2]: value for name, value in state.items() if name.startswith(f"{kind}.")}
            weights.load_state_dict(own)

    def _other_weights(self) -> dict[str, OtherWeights]:
        """Those that cannot be made again from the configuration."""
        found: dict[str, OtherWeights] = {}
        if self._average is not None:
            found["average"] = self._average
        if self._reference is not None and self.algorithm.reference_reset_interval is not None:
            found["reference"] = self._reference
        return found

    def evaluated(self) -> AbstractContextManager[None]:
        """Within it the policy has the weights that are evaluated and exported: the average with ``ema_decay``, else
        the present ones."""
        return nullcontext() if self._average is None else self._average.acting()

    def _reset_reference(self, iteration: int) -> None:
        interval = self.algorithm.reference_reset_interval
        if self._reference is None or interval is None or iteration == 0 or iteration % interval:
            return
        self._reference.follow(1.0)
        if self.algorithm.reset_optimizer_with_reference:
            self.optimizer.state.clear()

    def _batch(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], penalties: np.ndarray | None,
        baselines: Mapping[Start, float] | None,
    ) -> Batch:  # fmt: skip
        return make_batch(
            arrays, results, self._estimator, self.algorithm.reward_type, self._objective.has_value, penalties,
            baselines, self._world,
        )  # fmt: skip

    def _penalties(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], totals: UpdateTotals
    ) -> np.ndarray | None:
        """What is added to the rewards of this rank's episodes, float32 [R, V]; None if nothing is."""
        overlong, reward_type = self.reward.overlong_penalty, self.algorithm.reward_type
        if not (overlong.enable or self.algorithm.use_kl_in_reward):
            return None
        found = shaping.nothing(arrays, reward_type)
        if overlong.enable:
            found += shaping.overlong(arrays, results, overlong, self.max_steps, reward_type)
        if self.algorithm.use_kl_in_reward:
            found -= np.float32(self._kl_coefficient.value) * self._kl_rewards(arrays, results, totals)
        return found

    def _kl_rewards(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], totals: UpdateTotals
    ) -> np.ndarray:
        """KL of each reward's actions towards the reference, float32 [R, V]."""
        found = shaping.nothing(arrays, self.algorithm.reward_type)
        rows = np.concatenate([np.asarray(result.rows, np.int64) for result in results])
        spec, level = self.policy.spec, self.algorithm.logprob_type
        for part, records in self._scan(arrays, rows):
            reference = self._reference_evaluation(records)
            assert reference is not None
            result = self._evaluate(records) if self._objective.exact_kl else reference
            steps = torch.from_numpy(arrays["num_steps"][rows[part]]).long().to(self.device)
            rewards, elements = self._objective.kl_rewards(records, result, reference, steps)
            mask = granularity.mask(steps, spec.num_action_chunks, spec.action_dim, level)
            totals.average("train/kl_reference", elements, mask)
            found[rows[part]] = rewards.cpu().numpy()
        return found

    def _with_proximal(self, arrays: Mapping[str, np.ndarray], batch: Batch) -> Batch:
        """The batch with log-probs of the policy before this iteration's first update, if the loss reads them."""
        if not self._objective.reads_proximal or self._warming_up:
            return batch
        found = torch.zeros(len(batch), *self.policy.spec.decision["logprobs"].shape)
        keep = self._objective.carries_gradient(self._objective.elements(batch, torch.arange(len(batch))))
        with torch.no_grad():
            for part in self._passes(batch.ranks, keep, self._scan_size):
                rows = batch.rows[part.numpy()] if len(part) else self._filler
                logprobs = self._evaluate(gather(arrays, self._fields, rows, self.device)).logprobs
                found[part] = logprobs[: len(part)].float().cpu()
        return replace(batch, proximal=found)

    @property
    def _scan_size(self) -> int:
        return self.algorithm.logprob_forward_micro_batch_size or self.actor.micro_batch_size

    def _scan(self, arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Records of ``rows`` int64 [n] for a pass without gradients, with their place in ``rows``."""
        size = self._scan_size
        with torch.no_grad():
            for first in range(0, len(rows), size):
                part = slice(first, first + size)
                yield part, gather(arrays, self._fields, rows[part], self.device)

    def _evaluate(self, records: Mapping[str, Tensor]) -> Evaluation:
        if self._objective.exact_kl:
            return self.policy.evaluate(records, self.sampling, distribution=True)
        return self.policy.evaluate(records, self.sampling)

    def _kept(self, results: Sequence[EpisodeResult]) -> Sequence[EpisodeResult]:
        algorithm = self.algorithm
        if not algorithm.filter_rewards:
            return results
        return within_bounds(results, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)

    def _epochs(
        self, arrays: Mapping[str, np.ndarray], batch: Batch, iteration: int, totals: UpdateTotals
    ) -> None:  # fmt: skip
        epochs, size = self.algorithm.update_epoch, self.actor.global_batch_size
        steps = -(-len(batch) // size)
        for epoch in range(epochs):
            order = (self.seed, iteration, epoch)
            for number, chosen in enumerate(optimizer_batches(len(batch), size, order), start=1):
                self._schedule.apply(self.optimizer, iteration + (epoch * steps + number) / (epochs * steps))
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
        if self._objective.reads_sequences and not self._warming_up:
            elements = self._with_drift(arrays, batch, chosen, elements, keep)
        measure_gap = totals.batches == 0  # the weights are still those that acted
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        passes = self._micro_batches(arrays, batch, chosen, keep, totals)
        with value_head_only(self.policy) if self._warming_up and not self._parallel.meets else nullcontext():
            for number, part in enumerate(passes, start=1):
                self._parallel.last_pass(number == len(passes))
                if not len(part):
                    self._empty_pass(arrays, elements)
                    continue
                rows = batch.rows[chosen[part].numpy()]
                loss += self._micro_batch(arrays, rows, elements.part(part, self.device), totals, measure_gap)
        loss = self._world.add(loss)
        self._parallel.sum_gradients()
        if self._warming_up:
            self._keep_value_gradients_only()
        if self._too_far(totals):
            self.optimizer.zero_grad(set_to_none=True)
            return False
        self.loss_scale.unscale(self.optimizer)
        norm = self._parallel.clip(self.actor.optim.clip_grad)
        self._apply(loss, norm, totals)
        return True

    def _micro_batches(
        self, arrays: Mapping[str, np.ndarray], batch: Batch, chosen: Tensor, keep: Tensor, totals: UpdateTotals
    ) -> list[Tensor]:
        """:meth:`_passes` of the records ``keep`` bool [n] among ``chosen`` int64 [n], those of like cost together."""
        ranks, costs = batch.ranks[chosen], None
        if isinstance(self.policy, CountsFlops):
            own = batch.rows[chosen[self._own(ranks, keep)].numpy()]
            light = {name: arrays[name][own] for name in ("task_id", *self.policy.spec.decision)}
            costs = torch.from_numpy(self.policy.flops(light, training=not self._warming_up))
            totals.flops += costs.sum().item()
        totals.samples += len(self._own(ranks, keep))
        return self._passes(ranks, keep, self.actor.micro_batch_size, costs)

    def _own(self, ranks: Tensor, chosen: Tensor) -> Tensor:
        """Indices of this rank's records among the ``chosen`` bool [n], those of ``ranks`` int64 [n]."""
        return (chosen & (ranks == self._world.rank)).nonzero().flatten()

    def _passes(self, ranks: Tensor, chosen: Tensor, size: int, costs: Tensor | None = None) -> list[Tensor]:
        """This rank's own in parts of near-equal size: indices. Where a pass is a meeting, empty ones bring all ranks
        to the same number."""
        own = self._own(ranks, chosen)
        passes = micro_batches(own, size, costs) if len(own) else []
        if self._parallel.meets:
            most = max((-(-int(count) // size) for count in torch.bincount(ranks[chosen])), default=0)
            passes += [own[:0]] * (most - len(passes))
        return passes

    def _empty_pass(self, arrays: Mapping[str, np.ndarray], elements: Elements) -> None:
        """A forward and backward pass that counts nothing, because other ranks have one to make."""
        records = gather(arrays, self._fields, self._filler, self.device)
        first = elements.part(torch.zeros(1, dtype=torch.long), self.device)
        in_loss = self._objective.kl_in_loss and not self._warming_up
        reference = self._reference_evaluation(records) if in_loss else None
        terms = self._objective.terms(self._evaluate(records), records, first, reference)
        total = self._objective.total(terms, self._kl_coefficient.value, value_only=self._warming_up)
        (0.0 * total).backward()

    def _keep_value_gradients_only(self) -> None:
        """Where weights are gathered for a pass, those that rest get a gradient all the same."""
        for name, parameter in self.policy.named_parameters():
            if not name.startswith("value_head"):
                parameter.grad = None

    def _with_drift(
        self, arrays: Mapping[str, np.ndarray], batch: Batch, chosen: Tensor, elements: Elements, keep: Tensor
    ) -> Elements:
        """The elements with ``mean(lp − lp_old)`` of the sequences trained on, from a pass without gradients."""
        ids, sums = batch.sequence_ids[chosen], torch.zeros(len(chosen))
        with torch.no_grad():
            for part in self._passes(batch.ranks[chosen], torch.isin(ids, ids[keep]), self.actor.micro_batch_size):
                rows = batch.rows[chosen[part].numpy()] if len(part) else self._filler
                records = gather(arrays, self._fields, rows, self.device)
                result = self.policy.evaluate(records, self.sampling)
                if len(part):
                    own = elements.part(part, self.device)
                    sums[part] = self._objective.log_ratio_sums(result, records, own).float().cpu()
        self._world.sum(sums)
        return replace(elements, drift=sequence_means(sums, elements.mask, ids))

    def _too_far(self, totals: UpdateTotals) -> bool:
        """Whether the optimizer batch in progress has a mean ratio beyond ``early_stop_imp_ratio``."""
        limit = self.algorithm.early_stop_imp_ratio
        if limit is None:
            return False
        stats = add_stats(self._world.gather(on_cpu(totals.batch_stats)))
        return stats is not None and stats.mean_ratio > limit

    def _micro_batch(
        self, arrays: Mapping[str, np.ndarray], rows: np.ndarray, elements: Elements, totals: UpdateTotals,
        measure_gap: bool,
    ) -> float:  # fmt: skip
        """Forward and backward of the records in ``rows`` int64 [m]; their share of the loss."""
        records = gather(arrays, self._fields, rows, self.device)
        totals.add_staleness(self.weight_version - arrays["version"][rows])
        in_loss = self._objective.kl_in_loss and not self._warming_up
        reference = self._reference_evaluation(records) if in_loss else None
        terms = self._objective.terms(self._evaluate(records), records, elements, reference)
        total = self._objective.total(terms, self._kl_coefficient.value, value_only=self._warming_up)
        self.loss_scale.backward(total)
        totals.add(terms, elements.mask, measure_gap)
        return total.item()

    def _reference_evaluation(self, records: Mapping[str, Tensor]) -> Evaluation | None:
        """What the reference says of m records; None without ``kl_beta``."""
        if self._reference is None:
            return None
        self._parallel.forget()
        with self._reference.acting():
            result = self._evaluate(records)
        self._parallel.forget()
        return result

    @property
    def _warming_up(self) -> bool:
        """Whether the next optimizer step trains the value head alone."""
        return self._objective.has_value and self.weight_version < self.algorithm.critic_warmup_steps

    def _apply(self, loss: float, norm: float, totals: UpdateTotals) -> None:
        totals.batches += 1
        if self.loss_scale.overflowed(loss, norm):
            self.optimizer.zero_grad(set_to_none=True)
            totals.overflows += 1
            return
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._reject(loss, norm, totals)
            return
        totals.value_grad_norm += self._value_grad_norm(norm)
        self.optimizer.step()
        self.loss_scale.updated()
        if self._average is not None and self.actor.optim.ema_decay is not None:
            self._average.follow(1 - self.actor.optim.ema_decay)
        self.weight_version += 1
        self.bad_in_a_row = 0
        self.last_finite = f"loss {loss:.4g}, gradient norm {norm:.4g} at weight version {self.weight_version}"
        totals.steps += 1
        totals.loss += loss
        totals.grad_norm += norm

    def _value_grad_norm(self, norm: float) -> float:
        """2-norm of the value head's gradient before all gradients, of ``norm``, were clipped; 0 without one."""
        groups = [group for group in self.optimizer.param_groups if group["name"] == "value"]
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        if not gradients or norm == 0:
            return 0.0
        clipped: Any = torch.nn.utils.get_total_norm(gradients)
        clipped = clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped  # sharded
        return clipped.item() / min(self.actor.optim.clip_grad / (norm + 1e-6), 1.0)

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
