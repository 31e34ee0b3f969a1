"""The learner of an actor with critics: one iteration's records → memory → optimizer steps on what is remembered.

    records ─▶ entries ─▶ memory ─▶ so many updates a record ─▶ weights
                            └─ drawn anew for each update: a function of seed, update and rank

How many updates an iteration has is a function of the records that were collected (``algorithm.sac``), so the same seed
is the same run, however fast simulators are. Each rank remembers the records that it has collected, and reads its share
of each update from them and from its part of the demonstrations, if there are any; gradients are summed as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied import instructions
from embodied.algorithms import soft_actor_critic as sac
from embodied.algorithms.advantages.estimators import make_estimator
from embodied.algorithms.layout import Layout
from embodied.algorithms.rewards import Rewards
from embodied.data.demonstrations import Demonstration
from embodied.errors import CheckpointError, ConfigError, SpecMismatchError
from embodied.learn.acting import Acting
from embodied.learn.actor_critic.interventions import check_interventions, take_interventions
from embodied.learn.actor_critic.memory import Memory, check_capacity, clear, entries_of, entry_fields, with_marks
from embodied.learn.actor_critic.share import Share
from embodied.learn.actor_critic.shown import Shown, metrics_of
from embodied.learn.actor_critic.transitions import transitions_at
from embodied.learn.actor_critic.update import MEASURED, Draws, Loss, Transitions
from embodied.learn.batch import Batch
from embodied.learn.lagged import acting_of
from embodied.learn.replay.demonstrations import Entries, Joined
from embodied.learn.replay.ring import Replay
from embodied.learn.score.batches import gather_numbers, make_batch
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.step.engine import Outcome, StepEngine, Stepping, under
from embodied.learn.watch import Passed, Watch, unwatched
from embodied.observe.metrics import Metric
from embodied.observe.terminal.progress import Phase
from embodied.parallel.sharding import Parallel
from embodied.protocols import CHUNK, DEMONSTRATED, ActorCritic, CountsFlops, Policy
from embodied.schema import ActorConfig, AlgorithmConfig
from embodied.types import EnvSpec, EpisodeResult, Start


@dataclass
class UpdateSums:
    """What the updates of an iteration have come to."""

    measured: torch.Tensor  # float64 [M], sums over this rank's transitions of MEASURED
    records: int = 0  # transitions that this rank has read
    acted: int = 0  # of them, those that the actor learnt from as well
    steps: int = 0
    bad: int = 0
    loss: float = 0.0
    norm: float = 0.0


@dataclass
class ActorCriticLearner(Stepping):
    """Owns optimizer, weight version, memory and the acting policy (:attr:`acting`).

    Args:
        iterations: of the run, what shares of the schedule refer to.
        peak_flops: FLOP/s that the device could do; None: unknown.
        weight_sync_interval: iterations between two of which what acts takes the present weights.
        replay: folder of the records that are remembered, of all processes; None: nothing is (a dry run).
        expected: entries that a process remembers in all of the run at most; None: it is not known.
        origin: of what env and policy the records are.

    Raises:
        SpecMismatchError: the policy has no actor and critics.
        ConfigError: it has fewer critics than a target takes; or too few records fit.
        RunFolderError: the records cannot be kept there.
    """

    policy: Policy
    env: EnvSpec
    actor: ActorConfig
    algorithm: AlgorithmConfig
    device: torch.device
    seed: int
    max_bad_updates: int
    iterations: int = 1
    peak_flops: float | None = None
    parallel: Parallel | None = None
    weight_sync_interval: int = 1
    make_acting: Callable[[Policy, int, int, Parallel | None], Acting] = acting_of
    replay: Path | None = None
    origin: str = ""
    expected: int | None = None
    memory: Memory = field(init=False)
    samples: int = field(default=0, init=False)  # transitions that the last update read
    flops: float = field(default=0.0, init=False)
    starts: StartMemory | None = field(default=None, init=False)  # nothing is made of what starts are worth
    rows: Sequence[Metric] = field(default=(), init=False)  # metrics of its own are in the table of all metrics
    cut_short: bool = field(default=False, init=False)  # the weights are those in the midst of an update
    advised: bool = field(default=False, init=False)
    unlogged: dict[str, float] = field(default_factory=dict, init=False)  # metrics of an iteration not yet evaluated
    records: int = field(default=0, init=False)  # that all ranks have ever collected
    updates: int = field(default=0, init=False)  # that were made or left out as not finite
    shown: Shown | None = field(default=None, init=False)  # demonstrations of files

    def __post_init__(self) -> None:
        if not isinstance(self.policy, ActorCritic):
            raise SpecMismatchError(
                f"algorithm.learner is sac, and {type(self.policy).__name__} has no actor and critics",
                "choose a policy that has: model=head; or another algorithm, e.g. algorithm=grpo",
            )
        self._critics: ActorCritic = self.policy
        check_interventions(self.env, self._critics)
        wanted, there = self.algorithm.sac.target_critics, self._critics.critics
        if wanted is not None and wanted > there:
            raise ConfigError(
                f"algorithm.sac.target_critics is {wanted}, and the policy has {there} critics",
                f"set algorithm.sac.target_critics to {there} or less, or raise actor.model.critics",
            )
        algorithm, spec = self.algorithm, self.policy.spec
        self.acting = self.make_acting(self.policy, algorithm.max_staleness, self.weight_sync_interval, self.parallel)
        self.engine = StepEngine(self.policy, self.actor, self.parallel, self.iterations, self.max_bad_updates)
        self._group, self._size = self.engine.parallel.group, spec.decision[CHUNK].shape[0]
        self._ratio = algorithm.replay.share(self.env.interventions)
        self._fields = entry_fields(self.policy, self.env, marked=self._ratio > 0)
        check_capacity(self._fields, algorithm, self._group.size)
        if self.replay is not None:
            kept, rank = algorithm.replay, self._group.rank
            ring = Replay.open(
                self.replay / f"rank-{rank}", self._fields, kept.capacity, kept.max_gb, self.origin,
                (rank, self._group.size), self.expected,
            )  # fmt: skip
            self.memory = Memory(ring)
        entropy = algorithm.sac.target_entropy
        entropy = sac.default_target_entropy(self._size) if entropy is None else entropy
        self._loss = Loss(self._critics, algorithm.sac, entropy)
        self._rewards = Rewards(Layout(spec.elements, spec.num_action_chunks), algorithm.reward_type)
        self._told: dict[str, float] = {}  # metrics of an iteration's records
        self._returns = make_estimator("raw", 1, 1.0, 1.0, False)
        self.engine.rest()

    def show(
        self, episodes: Sequence[Demonstration], reward: float, phase: Callable[[int], AbstractContextManager[Phase]]
    ) -> None:  # fmt: skip
        """Takes demonstrated episodes, of which each rank has its part. Called once, before anything is loaded.

        Args:
            episodes: of all ranks.
            reward: of the success that ends each.
            phase: shows that a base is asked about so many observations.

        Raises:
            SpecMismatchError: they are not what the run records, or the policy learns from none.
            EmbodiedError: the base does not answer, or its answers cannot be kept.
        """
        assert self.replay is not None
        self.shown = Shown.of(
            self.policy, self.env, episodes, self._fields, reward, self.seed, self._group, self.device,
            self.replay / "demonstrations", phase,
        )  # fmt: skip

    @property
    def _entries(self) -> Entries:
        """All that updates are drawn from."""
        return self.memory if self.shown is None else Joined(self.shown.entries, self.memory)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Context in which learner and acting policy have the evaluated weights, and the actor decides."""
        with super().evaluated(), self.acting.evaluated():
            self._explore(False)
            yield

    def begin_rollout(self, iteration: int) -> None:
        """Gives the acting policy the present weights, if they are due for the rollout of ``iteration``; before
        anything is learnt its chunks are uniform."""
        self.acting.begin(iteration, self.weight_version)
        self._explore(self.records < self.algorithm.sac.learning_starts)

    def _explore(self, uniform: bool) -> None:
        assert isinstance(self.acting.policy, ActorCritic)
        self.acting.policy.explore(uniform)

    def update(
        self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], iteration: int,
        baselines: Mapping[Start, float] | None = None, watch: Watch = unwatched,
    ) -> tuple[dict[str, float], Batch]:  # fmt: skip
        """Remembers the records of ``results``, which stand in the slab's ``arrays``, and makes the updates that they
        bring. All ranks call it. Arguments, results and errors as of :meth:`embodied.learn.trainer.Trainer.update`."""
        self.cut_short = True
        batch = self._remember(arrays, results)
        due = sac.updates_due(self.records, self.algorithm.sac.learning_starts, self.algorithm.sac.updates_per_record)
        first, sums = self.updates, UpdateSums(torch.zeros(len(MEASURED), dtype=torch.float64))
        share = self.share()
        with watch("update", (due - first) * share.size) as passed:
            for number in range(first, due):
                self.engine.set_rates(iteration + (number + 1 - first) / (due - first))
                self.update_once(number, share, sums, passed)
        self.updates = due
        self.engine.rest()
        self.cut_short = False
        return self._metrics(sums) | self._told, batch

    def _remember(self, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult]) -> Batch:
        """Appends this rank's records of an iteration to the memory; returns the batch of all ranks' episodes."""
        numbers = gather_numbers(arrays, results, group=self._group)
        batch = make_batch(numbers, results, self._returns, self._rewards)
        mine = [result for result in results if result.rank == self._group.rank]
        names = [name for name in self._fields if name in arrays]
        entries = entries_of(arrays, mine, names)
        if untold := [name for name in self._fields if name not in (*names, DEMONSTRATED)]:
            rows = entries_of({"row": np.arange(len(arrays["num_steps"]))}, mine, ["row"])["row"]
            told = self.policy.encode_instructions(instructions.of_rows(self.env, arrays, rows))
            entries |= {name: told[name].numpy() for name in untold}
        if DEMONSTRATED in self._fields:
            entries = with_marks(entries)
        marked = take_interventions(self._critics, arrays, mine, entries)
        if self.env.interventions:
            self._told = {"rollout/intervention_share": sum(self._group.gather(marked)) / len(batch)}
        clear(entries)
        self.memory.append(entries)
        self.records += len(batch)
        return replace(batch, groups=replace(batch.groups, zero_groups=0))  # every record is trained on

    def share(self) -> Share:
        """Returns this rank's share of each update: ranks draw from what they have, so in proportion."""
        return Share.of(self._entries, self._group, self.actor.global_batch_size, self._ratio)

    def update_once(self, number: int, share: Share, sums: UpdateSums, passed: Passed) -> None:
        """Makes one update: one optimizer step, and what follows it."""
        options, rank = self.algorithm.sac, self._group.rank
        acts = number % options.actor_interval == 0
        batch = self._drawn(number, share)
        draws = Draws.of(
            self.seed, number, rank, (share.size, self._size), self._critics.critics, options.target_critics,
            self.device,
        )  # fmt: skip
        weight = 1 / self.actor.global_batch_size

        def backward(part: torch.Tensor) -> float:
            rows = slice(int(part[0]), int(part[-1]) + 1)
            whole = len(part) == len(batch)
            loss, measured = self._loss(
                batch if whole else batch.part(rows), draws if whole else draws.part(rows), weight, acts
            )
            self.engine.loss_scale.backward(loss)
            sums.measured += measured.double().cpu()
            return loss.item()

        parts = torch.arange(share.size).split(self.actor.micro_batch_size) if share.size else []
        taken = self.engine.take(parts, passed, backward)
        if (number + 1) % options.target_interval == 0:
            self._critics.follow(options.target_rate)
        sums.records += share.size
        sums.acted += share.size if acts else 0
        sums.bad += taken.outcome == Outcome.NOT_FINITE
        if taken.outcome == Outcome.MADE:
            sums.steps, sums.loss, sums.norm = sums.steps + 1, sums.loss + taken.loss, sums.norm + taken.norm

    def _drawn(self, number: int, share: Share) -> Transitions:
        """Draws this rank's transitions of an update."""
        return transitions_at(
            self._entries, share.drawn(self.seed, number, self._group.rank), self._critics,
            self.algorithm.sac.n_step, self.algorithm.gamma, self.device,
        )  # fmt: skip

    def _metrics(self, sums: UpdateSums) -> dict[str, float]:
        """Returns the metrics of an iteration's updates, over all ranks."""
        group, taken = self._group, max(sums.steps, 1)
        shares = group.gather((sums.measured, sums.records, sums.acted, len(self.memory)))
        measured, *counts = zip(*shares, strict=True)
        total, (read, acted, remembered) = sum(measured, torch.zeros(len(MEASURED))), map(sum, counts)
        found = {
            "train/loss": sums.loss / taken, "train/grad_norm": sums.norm / taken,
            "train/optimizer_steps": sums.steps, "train/bad_updates": sums.bad, "train/records": read,
            "train/lr": self.engine.lr, "train/weight_version": self.weight_version,
            "train/replay_entries": remembered,
            "train/temperature": self._critics.log_temperature.detach().exp().item(),
        }  # fmt: skip
        for place, (name, of_actor) in enumerate(MEASURED.items()):
            if count := acted if of_actor else read:
                found[name] = float(total[place]) / count
        if self._ratio:
            found |= metrics_of(self.shown, len(self.memory.demonstrated), group)
        self.samples, self.flops = read, self._flops(read)
        return found

    def _flops(self, read: int) -> float:
        """Returns the FLOPs of updates that have read so many transitions; 0 if the policy does not count them."""
        if not isinstance(self.policy, CountsFlops) or not self.actor.calculate_flops:
            return 0.0
        one = {CHUNK: np.zeros((1, self._size), np.float32)}
        return read * float(self.policy.flops(one, training=True)[0])

    def state_dict(self) -> dict[str, Any]:
        """Returns an update's state beside policy and optimizer, for checkpoints (embodied/learn/checkpoint/state.py):
        numbers and tensors (not copies) by name; of the memories of all ranks, what finds their entries again. A
        collective."""
        return {
            **self.engine.state_dict(), **self.acting.state_dict(), "unlogged": self.unlogged, "records": self.records,
            "updates": self.updates, **{f"target.{name}": tensor for name, tensor in self._critics.targets().items()},
            "replay": self._group.gather(self.memory.ring.state_dict()),
            **(self.shown.checksums.state_dict(self._group) if self.shown else {}),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned."""
        self.engine.load_state_dict(state)
        self.acting.load_state_dict(state, self.weight_version)
        self.unlogged = dict(state.get("unlogged", {}))
        self.records, self.updates = int(state["records"]), int(state["updates"])
        targets = under("target", state)
        with torch.no_grad():
            for name, tensor in self._critics.targets().items():
                tensor.copy_(targets[name])
        remembered, rank = state["replay"], self._group.rank
        if len(remembered) != self._group.size:
            raise CheckpointError(
                f"the checkpoint has the replayed records of {len(remembered)} processes, and {self._group.size} train "
                "now: each goes on with its own",
                f"run it with {len(remembered)} processes (torchrun --nproc-per-node)",
            )
        if self.shown:
            self.shown.checksums.check(state, rank)
        self.memory.load_state_dict(remembered[rank])

    def saved(self, state: Mapping[str, Any]) -> None:
        """Says that the checkpoint with this state is whole (:meth:`Replay.saved`). Another thread may call it."""
        self.memory.ring.saved(state["replay"][self._group.rank])

    def close(self) -> None:
        """Closes the files of what is remembered."""
        if self.replay is not None:
            self.memory.ring.close()
