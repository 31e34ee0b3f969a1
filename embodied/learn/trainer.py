"""The trainer: one iteration's records → optimizer steps.

The loss of an optimizer batch is ``Σ weight · loss`` over its elements with weights fixed before the first forward pass
(:mod:`embodied.algorithms.aggregation`), so micro-batches only bound memory, and records of advantage zero are left out
before the forward pass while the denominators stay those of the full batch. The terms of the loss are in
:mod:`embodied.learn.objective`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.aggregation import sequence_means
from embodied.algorithms.estimators import make_estimator
from embodied.algorithms.kl import make_coefficient
from embodied.learn import shaping
from embodied.learn.batch import Batch, counts_of, make_batch, optimizer_batches, within_bounds
from embodied.learn.engine import Engine, Outcome, under, value_grad_norm
from embodied.learn.freeze import value_head_only
from embodied.learn.objective import Elements, Objective, Terms
from embodied.learn.passes import Evaluator, OwnRecords, until_stopped
from embodied.learn.reference import Reference
from embodied.learn.totals import UpdateTotals, add_stats, on_cpu
from embodied.learn.watch import Passed, Watch, unwatched
from embodied.parallel.sharding import Parallel
from embodied.protocols import CountsFlops, Policy
from embodied.schema import ActorConfig, AlgorithmConfig, RewardConfig
from embodied.types import EnvSpec, EpisodeResult, Sampling, Start


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
    reward: RewardConfig = field(default_factory=RewardConfig)
    iterations: int = 1
    peak_flops: float | None = None
    samples: int = field(default=0, init=False)  # records that the last update trained on, once an epoch
    flops: float = field(default=0.0, init=False)  # of that; 0 if the policy does not say
    parallel: Parallel | None = None
    cut_short: bool = field(default=False, init=False)  # the weights are those in the midst of an update
    unlogged: dict[str, float] = field(default_factory=dict, init=False)  # metrics of an iteration not yet evaluated

    def __post_init__(self) -> None:
        algorithm = self.algorithm
        self.engine = Engine(self.policy, self.actor, self.parallel, self.iterations, self.max_bad_updates)
        self._parallel = self.engine.parallel
        self._world = self._parallel.world
        self._estimator = make_estimator(
            algorithm.adv_type, algorithm.adv_std_ddof, algorithm.gamma, algorithm.gae_lambda,
            algorithm.normalize_advantages,
        )  # fmt: skip
        self._objective = Objective(self.policy.spec, algorithm, self.max_steps)
        self._reference = Reference(self.policy) if algorithm.kl_beta else None
        control = algorithm.kl_ctrl
        self._kl_coefficient = make_coefficient(algorithm.kl_beta, control.type, control.target_kl, control.horizon)
        self._evaluate = Evaluator(
            self.policy, self.sampling, self._parallel, self._reference, self._objective.exact_kl
        )

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.engine.optimizer

    @property
    def weight_version(self) -> int:
        """Optimizer steps so far, which every record carries of the policy that acted."""
        return self.engine.weight_version

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None = None, watch: Watch = unwatched,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        """Train on the records of ``results``, which stand in the slab's ``arrays`` (of each rank its own). All ranks
        call it, and all decide the same: what depends on data is summed over ranks first.

        Args:
            iteration: from 0.
            baselines: the return of a greedy episode from each start (``adv_type: remax``).
            watch: told of each pass; may end the update between two of them.

        Returns:
            metrics of the ``train/`` group, and the batch of all episodes (``filter_rewards`` may train on fewer).

        Raises:
            NumericalError: ``max_bad_updates`` updates in a row were not finite.
            Stopped: on all ranks; ``watch`` has ended the update on one. The trainer is :attr:`cut_short` then: what it
                holds is no state from which a run could go on.
        """
        self.cut_short = True
        found = self._update(arrays, results, iteration, baselines, watch)
        self.cut_short = False
        return found

    def _update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None, watch: Watch,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        self._reset_reference(iteration)
        own = self._own(arrays, results)
        kept = self._kept(results)
        totals = UpdateTotals(filtered=len({r.episode.group_id for r in results} - {r.episode.group_id for r in kept}))
        penalties = self._penalties(own, totals, watch)
        batch = self._batch(arrays, results, penalties, baselines)
        if kept:
            trained = batch if len(kept) == len(results) else self._batch(arrays, kept, penalties, baselines)
            self._epochs(own, self._with_proximal(own, trained, watch), iteration, totals, watch)
        totals = totals.over(self._world)
        metrics = totals.metrics()
        self.samples, self.flops = totals.samples, totals.flops
        if (kl := totals.mean("train/kl_reference")) is not None:
            metrics["train/kl_beta"] = self._kl_coefficient.value
            self._kl_coefficient.update(kl, len(results))
        metrics["train/lr"] = self.engine.lr
        metrics["train/weight_version"] = self.weight_version
        if self.engine.loss_scale.enabled:
            metrics["train/loss_scale"] = self.engine.loss_scale.value
        if batch.explained_variance is not None:
            metrics["train/explained_variance"] = batch.explained_variance
        return metrics, batch

    def state_dict(self) -> dict[str, Any]:
        """What an update depends on beside policy and optimizer, for checkpoints (embodied/learn/state.py): numbers and
        tensors (not copies) by name. Which names there are is a function of the configuration."""
        state: dict[str, Any] = {
            **self.engine.state_dict(), "kl_beta": self._kl_coefficient.value, "unlogged": self.unlogged
        }  # fmt: skip
        if self._keeps_reference and self._reference is not None:
            state |= {f"reference.{name}": tensor for name, tensor in self._reference.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.engine.load_state_dict(state)
        self._kl_coefficient.value = float(state["kl_beta"])
        self.unlogged = dict(state.get("unlogged", {}))  # which checkpoints of earlier versions do not have
        if self._keeps_reference and self._reference is not None:
            self._reference.load_state_dict(under("reference", state))

    @property
    def _keeps_reference(self) -> bool:
        """Whether the reference cannot be made again from the configuration."""
        return self.algorithm.reference_reset_interval is not None

    def evaluated(self) -> AbstractContextManager[None]:
        """See :meth:`embodied.learn.engine.Engine.evaluated`."""
        return self.engine.evaluated()

    def _own(self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult]) -> OwnRecords:
        fields = [*self.env.obs, "task_id", *self.policy.spec.decision]
        mine = [result for result in results if result.rank == self._world.rank]
        return OwnRecords(arrays, mine, fields, self.device, self._parallel)

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

    def _penalties(self, own: OwnRecords, totals: UpdateTotals, watch: Watch) -> np.ndarray | None:
        """What is added to the rewards of this rank's episodes, float32 [R, V]; None if nothing is."""
        overlong, reward_type = self.reward.overlong_penalty, self.algorithm.reward_type
        if not (overlong.enable or self.algorithm.use_kl_in_reward):
            return None
        found = shaping.nothing(own.arrays, reward_type)
        if overlong.enable:
            found += shaping.overlong(own.arrays, own.results, overlong, self.max_steps, reward_type)
        if self.algorithm.use_kl_in_reward:
            found -= np.float32(self._kl_coefficient.value) * self._kl_rewards(own, totals, watch)
        return found

    def _kl_rewards(self, own: OwnRecords, totals: UpdateTotals, watch: Watch) -> np.ndarray:
        """KL of each reward's actions towards the reference, float32 [R, V]."""
        found = shaping.nothing(own.arrays, self.algorithm.reward_type)
        rows = own.rows
        parts = [rows[first : first + self._scan_size] for first in range(0, len(rows), self._scan_size)]
        with torch.no_grad(), watch("KL to the reference", len(rows)) as passed:
            for part, _ in until_stopped(parts, passed, self._parallel):
                found[part] = self._kl_rewards_of(own, part, totals)
        return found

    def _kl_rewards_of(self, own: OwnRecords, rows: np.ndarray, totals: UpdateTotals) -> np.ndarray:
        """:meth:`_kl_rewards` of ``rows`` int64 [n], float32 [n, V]."""
        records = own.gather(rows)
        reference = self._evaluate.reference(records)
        assert reference is not None
        result = self._evaluate(records) if self._objective.exact_kl else reference
        counts = counts_of(own.arrays, rows).to(self.device)
        rewards, elements = self._objective.kl_rewards(records, result, reference, counts)
        mask = self._objective.layout.mask(counts, self.algorithm.logprob_type)
        totals.average("train/kl_reference", elements, mask)
        return rewards.cpu().numpy()

    def _with_proximal(self, own: OwnRecords, batch: Batch, watch: Watch) -> Batch:
        """The batch with log-probs of the policy before this iteration's first update, if the loss reads them."""
        if not self._objective.reads_proximal or self._warming_up:
            return batch
        found = torch.zeros(len(batch), self._objective.layout.size)
        keep = self._objective.carries_gradient(self._objective.elements(batch, torch.arange(len(batch))))
        parts = own.parts(batch.ranks, keep, self._scan_size)
        with torch.no_grad(), watch("log-probs before the update", sum(map(len, parts))) as passed:
            for part, _ in until_stopped(parts, passed, self._parallel):
                logprobs = self._evaluate(own.gather(batch.rows[part.numpy()])).logprobs
                found[part] = logprobs[: len(part)].flatten(1).float().cpu()
        return replace(batch, proximal=found)

    @property
    def _scan_size(self) -> int:
        return self.algorithm.logprob_forward_micro_batch_size or self.actor.micro_batch_size

    def _kept(self, results: Sequence[EpisodeResult]) -> Sequence[EpisodeResult]:
        algorithm = self.algorithm
        if not algorithm.filter_rewards:
            return results
        return within_bounds(results, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)

    def _epochs(self, own: OwnRecords, batch: Batch, iteration: int, totals: UpdateTotals, watch: Watch) -> None:
        epochs = self.algorithm.update_epoch
        keep = self._objective.carries_gradient(self._objective.elements(batch, torch.arange(len(batch))))
        with watch("update", epochs * len(own.among(batch.ranks, keep))) as passed:
            for epoch in range(epochs):
                self._epoch(own, batch, (iteration, epoch, epochs), totals, passed)

    def _epoch(
        self, own: OwnRecords, batch: Batch, place: tuple[int, int, int], totals: UpdateTotals, passed: Passed
    ) -> None:
        """``place``: iteration, epoch, number of epochs."""
        (iteration, epoch, epochs), size = place, self.actor.global_batch_size
        steps = -(-len(batch) // size)
        for number, chosen in enumerate(optimizer_batches(len(batch), size, self.seed, iteration, epoch), start=1):
            self.engine.set_rates(iteration + (epoch * steps + number) / (epochs * steps))
            if not self._step(own, batch, chosen, totals, passed):
                totals.early_stops += 1
                break

    def _step(self, own: OwnRecords, batch: Batch, chosen: Tensor, totals: UpdateTotals, passed: Passed) -> bool:
        """One optimizer batch: ``chosen`` int64 [n] indexes the batch's records. False: stop the epoch here."""
        elements = self._objective.elements(batch, chosen)
        keep = self._objective.carries_gradient(elements)
        totals.skipped += int((~keep).sum())
        if not keep.any():
            return True
        totals.begin_batch()
        if self._objective.reads_sequences and not self._warming_up:
            elements = self._with_drift(own, batch, chosen, elements, keep, passed)
        measure_gap = totals.batches == 0  # the weights are still those that acted
        value_only = value_head_only(self.policy) if self._warming_up and not self._parallel.meets else None

        def backward(part: Tensor) -> float:
            if not len(part):
                return self._empty_pass(own, elements)
            rows = batch.rows[chosen[part].numpy()]
            return self._micro_batch(own, rows, elements.part(part, self.device), totals, measure_gap)

        taken = self.engine.take(
            self._micro_batches(own, batch, chosen, keep, totals), passed, backward,
            hook=lambda: self._check_gradients(totals), inspect=lambda norm: self._measure_value_head(norm, totals),
            during=value_only,
        )  # fmt: skip
        totals.add_step(taken)
        return taken.outcome != Outcome.ABANDONED

    def _check_gradients(self, totals: UpdateTotals) -> bool:
        """Whether the gradients of an optimizer batch, summed over ranks, may be applied."""
        if self._warming_up:
            self._keep_value_gradients_only()
        return not self._too_far(totals)

    def _measure_value_head(self, norm: float, totals: UpdateTotals) -> None:
        totals.value_grad_norm += value_grad_norm(self.optimizer, norm, self.actor.optim.clip_grad)

    def _micro_batches(
        self, own: OwnRecords, batch: Batch, chosen: Tensor, keep: Tensor, totals: UpdateTotals
    ) -> list[Tensor]:
        """This rank's of the records ``keep`` bool [n] among ``chosen`` int64 [n], in parts; counted in ``totals``."""
        ranks, costs = batch.ranks[chosen], None
        mine = own.among(ranks, keep)
        if isinstance(self.policy, CountsFlops):
            rows = batch.rows[chosen[mine].numpy()]
            light = {name: own.arrays[name][rows] for name in ("task_id", *self.policy.spec.decision)}
            costs = torch.from_numpy(self.policy.flops(light, training=not self._warming_up))
            totals.flops += costs.sum().item()
        totals.samples += len(mine)
        return own.parts(ranks, keep, self.actor.micro_batch_size, costs)

    def _empty_pass(self, own: OwnRecords, elements: Elements) -> float:
        """A forward and backward pass that counts nothing, because other ranks have one to make."""
        records = own.gather(np.zeros(0, np.int64))
        _, total = self._loss(records, elements.part(torch.zeros(1, dtype=torch.long), self.device))
        (0.0 * total).backward()
        return 0.0

    def _keep_value_gradients_only(self) -> None:
        """Where weights are gathered for a pass, those that rest get a gradient all the same."""
        for name, parameter in self.policy.named_parameters():
            if not name.startswith("value_head"):
                parameter.grad = None

    def _with_drift(
        self, own: OwnRecords, batch: Batch, chosen: Tensor, elements: Elements, keep: Tensor, passed: Passed
    ) -> Elements:
        """The elements with ``mean(lp − lp_old)`` of the sequences trained on, from a pass without gradients."""
        ids, sums = batch.sequence_ids[chosen], torch.zeros(len(chosen))
        parts = own.parts(batch.ranks[chosen], torch.isin(ids, ids[keep]), self.actor.micro_batch_size)
        with torch.no_grad():
            for part, _ in until_stopped(parts, lambda records: passed(0), self._parallel):
                records = own.gather(batch.rows[chosen[part].numpy()])
                result = self.policy.evaluate(records, self.sampling)
                if len(part):
                    read = elements.part(part, self.device)
                    sums[part] = self._objective.log_ratio_sums(result, records, read).float().cpu()
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
        self, own: OwnRecords, rows: np.ndarray, elements: Elements, totals: UpdateTotals, measure_gap: bool
    ) -> float:
        """Forward and backward of the records in ``rows`` int64 [m]; their share of the loss."""
        totals.add_staleness(self.weight_version - own.arrays["version"][rows])
        terms, total = self._loss(own.gather(rows), elements)
        self.engine.loss_scale.backward(total)
        totals.add(terms, elements.mask, measure_gap)
        return total.item()

    def _loss(self, records: Mapping[str, Tensor], elements: Elements) -> tuple[Terms, Tensor]:
        """Forward pass of m records: the terms of their loss, and their share of it."""
        in_loss = self._objective.kl_in_loss and not self._warming_up
        reference = self._evaluate.reference(records) if in_loss else None
        terms = self._objective.terms(self._evaluate(records), records, elements, reference)
        return terms, self._objective.total(terms, self._kl_coefficient.value, value_only=self._warming_up)

    @property
    def _warming_up(self) -> bool:
        """Whether the next optimizer step trains the value head alone."""
        return self._objective.has_value and self.weight_version < self.algorithm.critic_warmup_steps
