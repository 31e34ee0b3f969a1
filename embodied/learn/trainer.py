"""The trainer: one iteration's records → optimizer steps.

    records ─▶ score (embodied/learn/score/score.py) ─▶ training batch ─▶ epochs ─▶ optimizer batches ─▶ micro-batches

The loss of an optimizer batch is ``Σ weight · loss`` over its elements with weights fixed before the first forward pass
(:mod:`embodied.algorithms.aggregation`). So micro-batches only bound memory. Records to which no term of the loss
(step/objective.py) gives a gradient are left out before the pass; the denominators stay those of the full batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.kl import make_coefficient
from embodied.learn.acting import Acting
from embodied.learn.batch import Batch, optimizer_batches
from embodied.learn.lagged import acting_of
from embodied.learn.ranks.balance import Balance
from embodied.learn.ranks.teams import of_team, where_collected
from embodied.learn.score.drift import with_drift
from embodied.learn.score.own_successes import OwnSuccesses
from embodied.learn.score.score import Scorer
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.step.engine import Outcome, StepEngine, Stepping, under, value_grad_norm
from embodied.learn.step.freeze import drop_gradients_beside_value_head, value_head_only
from embodied.learn.step.meters.noise.meter import NoiseMeter
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.objective import Objective
from embodied.learn.step.passes import ForwardPasses, RankRecords, check_counts_tokens
from embodied.learn.step.reference import Reference
from embodied.learn.terms.term import Need, OptimizerBatch, Setup, Share
from embodied.learn.watch import Passed, Watch, unwatched
from embodied.parallel.sharding import Parallel
from embodied.protocols import CountsFlops, Policy
from embodied.schema import ActorConfig, AlgorithmConfig, RewardConfig
from embodied.types import EnvSpec, EpisodeResult, Sampling, Start


@dataclass
class Trainer(Stepping):
    """Owns optimizer, weight version and the acting policy (:attr:`acting`), usually the learning policy itself.

    Args:
        max_steps: longest possible episode, control steps (the constant of ``seq-mean-token-sum-norm``).
        iterations: of the run, what shares of the schedule refer to.
        peak_flops: FLOP/s that the device could do; None: unknown.
        parallel: how ranks share the policy; None = one process.
        max_tokens: of a forward and backward pass; None: passes are filled by records alone.
        recompute_logprobs: the old log-probs are those of the trained network, not the recorded ones.
        starts: remembers what starts are worth; None = nobody asks.
        weight_sync_interval: iterations between two of which what acts takes the present weights.
        make_acting: chooses the weights that act, and where.

    Raises:
        ConfigError: passes are filled by tokens, which the policy does not count; or the loss breaks its protocol.
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
    flops: float = field(default=0.0, init=False)  # FLOPs of that update; 0 if the policy does not count them
    parallel: Parallel | None = None
    max_tokens: int | None = None
    recompute_logprobs: bool = False
    weight_sync_interval: int = 1
    cut_short: bool = field(default=False, init=False)  # the weights are those in the midst of an update
    starts: StartMemory | None = None
    make_acting: Callable[[Policy, int, int, Parallel | None], Acting] = acting_of
    successes: OwnSuccesses | None = None  # of env.train.reward_mode=own_successes
    unlogged: dict[str, float] = field(default_factory=dict, init=False)  # metrics of an iteration not yet evaluated

    def __post_init__(self) -> None:
        algorithm, control = self.algorithm, self.algorithm.kl_ctrl
        check_counts_tokens(self.policy, self.max_tokens)
        self.acting = self.make_acting(self.policy, algorithm.max_staleness, self.weight_sync_interval, self.parallel)
        self.engine = StepEngine(self.policy, self.actor, self.parallel, self.iterations, self.max_bad_updates)
        self._parallel, self._group = self.engine.parallel, self.engine.parallel.group
        self._kl_coefficient = make_coefficient(algorithm.kl_beta, control.type, control.target_kl, control.horizon)
        setup = Setup(self.policy.spec, algorithm, self.max_steps, self._kl_coefficient, self.recompute_logprobs)
        self._objective = Objective(setup).checked(self.policy, self.env, self.device)
        self.rows = self._objective.rows
        without_gradients = algorithm.logprob_forward_micro_batch_size or self.actor.micro_batch_size
        self._score = Scorer(setup, self.reward, self._objective, without_gradients, self.starts, self.successes)
        self._reference = Reference(self.policy) if algorithm.kl_beta else None
        whole = Need.DISTRIBUTION in self._objective.needs | self._score.needs
        offload = self.actor.fsdp_config.activation_offload
        self._evaluate = ForwardPasses(self.policy, self.sampling, self._parallel, self._reference, whole, offload)
        self.noise = NoiseMeter(self.policy, self._parallel, self.seed, self.device, algorithm.calculate_noise_scale)
        self._rest()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Context in which learner and acting policy have the evaluated weights (:meth:`StepEngine.evaluated`)."""
        with super().evaluated(), self.acting.evaluated():
            yield

    def begin_rollout(self, iteration: int) -> None:
        """Gives the acting policy the present weights, if they are due for the rollout of ``iteration``."""
        self.acting.begin(iteration, self.weight_version)

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
        with self._parallel.splitting():
            found, batch = self._update(*of_team(arrays, results, self._parallel), iteration, baselines, watch)
        self._rest()
        self.cut_short = False
        return found, where_collected(batch, results, self._parallel)

    def _rest(self) -> None:
        """Moves what only updates need to host memory, as far as ``actor.offload_…`` says so."""
        self.engine.rest()
        if self._reference is not None and self.actor.offload_reference:
            self._reference.rest()

    def _update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None, watch: Watch,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        interval, reset = self.algorithm.reference_reset_interval, self.algorithm.reset_optimizer_with_reference
        if self._reference is not None and self._reference.restarts(iteration, interval) and reset:
            self.optimizer.state.clear()
        own, metrics = self._own(arrays, results), UpdateMetrics()
        batch, trained, own = self._score(own, results, self._evaluate, baselines, metrics, watch)
        self._score.learn(results, iteration)
        if trained is not None:
            self._epochs(own, trained, iteration, metrics, watch, len(results))
        metrics = metrics.over(self._group)
        self.samples, self.flops = metrics.samples, metrics.flops
        return metrics.metrics() | self._state_metrics(metrics, batch, len(results)), batch

    def _state_metrics(self, metrics: UpdateMetrics, batch: Batch, episodes: int) -> dict[str, float]:
        """Returns metrics of the trainer's state after an update; also adapts the weight of the KL."""
        found: dict[str, float] = {"train/lr": self.engine.lr, "train/weight_version": self.weight_version}
        found |= self.noise.metrics(episodes)
        if (kl := metrics.mean("train/kl_reference")) is not None:
            found["train/kl_beta"] = self._kl_coefficient.value
            self._kl_coefficient.update(kl, episodes)
        if self.engine.loss_scale.enabled:
            found["train/loss_scale"] = self.engine.loss_scale.value
        if batch.explained_variance is not None:
            found["train/explained_variance"] = batch.explained_variance
        return found | self._score.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Returns an update's state beside policy and optimizer, for checkpoints (embodied/learn/checkpoint/state.py):
        numbers and tensors (not copies) by name. Which names there are is a function of the configuration."""
        state: dict[str, Any] = {**self.engine.state_dict(), **self.acting.state_dict(), **self._score.state_dict()}
        state |= {"kl_beta": self._kl_coefficient.value, "unlogged": self.unlogged, "noise": self.noise.state_dict()}
        if self._kept_reference is not None:
            state |= {f"reference.{name}": tensor for name, tensor in self._kept_reference.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned."""
        self.engine.load_state_dict(state)
        self.acting.load_state_dict(state, self.weight_version)
        self._kl_coefficient.value = float(state["kl_beta"])
        self.unlogged = dict(state.get("unlogged", {}))  # checkpoints of earlier versions have none
        self.noise.load_state_dict(state.get("noise", {}))  # nor these
        self._score.load_state_dict(state)
        if self._kept_reference is not None:
            self._kept_reference.load_state_dict(under("reference", state))

    @property
    def _kept_reference(self) -> Reference | None:
        """The reference, if it cannot be made again from the configuration."""
        return None if self.algorithm.reference_reset_interval is None else self._reference

    def _own(self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult]) -> RankRecords:
        mine = [result for result in results if result.rank == self._group.rank]
        forward = self.algorithm.logprob_forward_max_tokens
        return RankRecords(arrays, mine, self.policy, self.env, self.device, self._parallel, self.max_tokens, forward)

    def _epochs(
        self, own: RankRecords, batch: Batch, iteration: int, metrics: UpdateMetrics, watch: Watch, episodes: int
    ) -> None:  # fmt: skip
        balance: Balance | None = None
        if self.actor.enable_dp_load_balance and self._group.size > 1:
            balance, batch = Balance.of(own, batch)
        with watch("update", self._passes(own, batch, iteration, balance)) as passed:
            with self.noise.first_pass(batch, iteration, metrics, 0 if self._warming_up else episodes):
                self._epoch(own, batch, (iteration, 0), metrics, passed, balance)
            metrics.records = metrics.samples
            for epoch in range(1, self.algorithm.update_epoch):
                self._epoch(own, batch, (iteration, epoch), metrics, passed, balance)

    def _passes(self, own: RankRecords, batch: Batch, iteration: int, balance: Balance | None) -> int:
        """Counts the records that this rank will compute in the epochs of an iteration."""
        epochs = self.algorithm.update_epoch
        keep = self._objective.carries_gradient(self._objective.optimizer_batch(batch, torch.arange(len(batch))))
        if balance is None:
            return epochs * len(own.among(batch.ranks, keep))
        steps = [chosen for epoch in range(epochs) for chosen in self._steps(batch, iteration, epoch)]
        return sum(len(own.among(balance.ranks(batch, chosen, keep[chosen]), keep[chosen])) for chosen in steps)

    def _steps(self, batch: Batch, iteration: int, epoch: int) -> list[Tensor]:
        """The records of each optimizer step of an epoch, int64 [n] each."""
        size, shuffle = self.actor.global_batch_size, self.algorithm.shuffle_rollout
        return list(optimizer_batches(len(batch), size, self.seed, iteration, epoch, shuffle))

    def _epoch(
        self, own: RankRecords, batch: Batch, place: tuple[int, int], metrics: UpdateMetrics, passed: Passed,
        balance: Balance | None,
    ) -> None:  # fmt: skip
        """``place``: iteration, epoch."""
        (iteration, epoch), epochs, batches = place, self.algorithm.update_epoch, self._steps(batch, *place)
        for number, chosen in enumerate(batches, start=1):
            self.engine.set_rates(iteration + (epoch * len(batches) + number) / (epochs * len(batches)))
            if not self._step(own, batch, chosen, metrics, passed, balance):
                metrics.early_stops += 1
                break

    def _step(
        self, own: RankRecords, batch: Batch, chosen: Tensor, metrics: UpdateMetrics, passed: Passed,
        balance: Balance | None = None,
    ) -> bool:  # fmt: skip
        """One optimizer batch: ``chosen`` int64 [n] indexes the batch's records. False: stop the epoch here."""
        whole = self._objective.optimizer_batch(batch, chosen)
        keep = self._objective.carries_gradient(whole)
        metrics.skipped += int((~keep).sum())
        if not keep.any():
            return True
        metrics.begin_batch()
        if self._has_value:
            metrics.add_to_steps("train/value_grad_norm", 0.0)  # shown even if no step is made
        if Need.DRIFT in self._objective.needs and not self._warming_up:
            whole = with_drift(
                whole, keep, own, batch, chosen, self._objective, self._evaluate, self.actor.micro_batch_size, passed
            )
        if balance is not None:
            own, batch = balance.moved(own, batch, chosen, keep, metrics)
        untrained = metrics.batches == 0 and not bool((batch.versions[chosen] < self.weight_version).any())
        value_only = value_head_only(self.policy) if self._warming_up and not self._parallel.collective_passes else None

        def backward(part: Tensor) -> float:
            if not len(part):
                return self._empty_pass(own, whole)
            metrics.add_staleness(self.weight_version - batch.versions[chosen[part]])
            rows = batch.rows[chosen[part].numpy()]
            with self.noise.records(chosen[part], self.engine.loss_scale.value):
                return self._micro_batch(own, rows, whole.part(part, self.device), metrics, untrained)

        taken = self.engine.take(
            self._micro_batches(own, batch, chosen, keep, metrics), passed, backward,
            before_clip=lambda: self._check_gradients(metrics),
            on_norm=lambda norm: self._measure_value_head(norm, metrics), passes_within=value_only,
        )  # fmt: skip
        metrics.add_step(taken)
        return taken.outcome != Outcome.ABANDONED

    def _check_gradients(self, metrics: UpdateMetrics) -> bool:
        """Returns whether the gradients of an optimizer batch, summed over ranks, may be applied."""
        if self._warming_up:
            drop_gradients_beside_value_head(self.policy)
        return not metrics.too_far(self.algorithm.early_stop_imp_ratio, self._group)

    def _measure_value_head(self, norm: float, metrics: UpdateMetrics) -> None:
        if self._has_value:
            found = value_grad_norm(self.optimizer, norm, self.actor.optim.clip_grad)
            metrics.add_to_steps("train/value_grad_norm", found)

    def _micro_batches(
        self, own: RankRecords, batch: Batch, chosen: Tensor, keep: Tensor, metrics: UpdateMetrics
    ) -> list[Tensor]:
        """This rank's of the records ``keep`` bool [n] among ``chosen`` int64 [n], in parts; counted in ``metrics``."""
        ranks, rows, costs = batch.ranks[chosen], batch.rows[chosen.numpy()], None
        mine = own.among(ranks, keep)
        if isinstance(self.policy, CountsFlops) and len(mine):
            light = own.light(rows[mine.numpy()])
            costs = torch.from_numpy(self.policy.flops(light, training=not self._warming_up))
            metrics.flops += costs.sum().item() if self.actor.calculate_flops else 0.0
        metrics.samples += len(mine)
        return own.parts(ranks, keep, rows, self.actor.micro_batch_size, costs)

    def _empty_pass(self, own: RankRecords, whole: OptimizerBatch) -> float:
        """Makes a forward and backward pass that counts nothing, because other ranks have one to make."""
        records = own.gather(np.zeros(0, np.int64))
        _, total = self._loss(records, whole.part(torch.zeros(1, dtype=torch.long), self.device))
        (0.0 * total).backward()
        return 0.0

    def _micro_batch(
        self, own: RankRecords, rows: np.ndarray, part: OptimizerBatch, metrics: UpdateMetrics, untrained: bool
    ) -> float:
        """Forward and backward pass of the records in ``rows`` int64 [m]; their share of the loss.

        Args:
            untrained: the weights are still those that acted.
        """
        shares, total = self._loss(own.gather(rows), part, untrained)
        self.engine.loss_scale.backward(total)
        metrics.add(shares)
        return total.item()

    def _loss(
        self, records: Mapping[str, Tensor], part: OptimizerBatch, untrained: bool = False
    ) -> tuple[list[Share], Tensor]:
        """Forward pass of m records: the terms' shares of their loss, and the sum."""
        in_loss = Need.REFERENCE in self._objective.needs and not self._warming_up
        reference = self._evaluate.reference(records) if in_loss else None
        self.noise.check(self._evaluate, records)
        result = self._evaluate(records)
        shares = self._objective.shares(part, records, result, reference, untrained)
        return shares, self._objective.total(shares, value_only=self._warming_up)

    @property
    def _has_value(self) -> bool:
        """True if a value head is trained."""
        return Need.VALUES in self._objective.needs

    @property
    def _warming_up(self) -> bool:
        """True while optimizer steps train the value head alone."""
        return self._has_value and self.weight_version < self.algorithm.critic_warmup_steps
