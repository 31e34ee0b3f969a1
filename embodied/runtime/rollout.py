"""The rollout scheduler: E episodes of a plan over S slots, with no slot idle.

    plan ──▶ pending ──RESET──▶ slot ──▶ ready ──▶ policy.act ──STEP──▶ slot ──▶ ready … ──▶ finished
               ▲                                                              │
               └───────────── the slot takes the next episode ◀───────────────┘

| waits for                         | unblocked by                                        |
|-----------------------------------|-----------------------------------------------------|
| policy: ``min_batch`` ready slots | completions of workers                              |
| a slot: a command                 | the policy's answer, or the next episode of the plan |
| an episode: a slot and rows       | an episode that ends                                |

What it does not know: tasks, rewards, tokens. Which slot runs an episode and which rows share a batch change no number:
sampling noise is a function of (seed, episode, chunk), and policy batches have one fixed shape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from embodied.errors import ConfigError
from embodied.observe.timing import Sections
from embodied.protocols import Policy
from embodied.runtime.capture import fast_act
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.plan import noise
from embodied.runtime.pool import Pool
from embodied.runtime.slab import Rows, Slab
from embodied.types import EnvSpec, Episode, EpisodeResult, Sampling


@dataclass(frozen=True)
class Job:
    """How to run a plan.

    Args:
        max_steps: step limit of each episode, control steps.
        keep_records: leave every record in the slab (training), or reuse its row once the episode has gone on
            (evaluation).
        stream: separates the sampling noise of training and evaluation.
        version: weight version that acts, written into each record.
        value_truncated: also observe where a truncated episode ended, and let the policy say the value of that; needs
            ``keep_records`` and one more row an episode.
        value_terminated: the same for terminated episodes.
        taken: rows of the slab that hold what must stay.
    """

    sampling: Sampling
    seed: int
    stream: int
    version: int
    max_steps: int
    keep_records: bool
    num_slots: int  # of the pool's slots, those that are used
    ignore_terminations: bool = False
    auto_reset: bool = True
    value_truncated: bool = False
    value_terminated: bool = False
    taken: frozenset[int] = frozenset()

    def rows_needed(self, chunk: int) -> int:
        """Slab rows that one episode may take, with ``chunk`` actions a record."""
        if not self.keep_records:
            return 2
        return -(-self.max_steps // chunk) + (self.value_truncated or self.value_terminated)


@dataclass(frozen=True)
class Schedule:
    """When the policy runs. ``lockstep`` waits for all slots; otherwise for ``min_batch`` of them.

    ``policy_batch`` is the number of rows of one policy call; shorter batches are filled up by repeating a row when
    ``fixed_shape``, so that a record's numbers do not depend on how many others were ready with it. Without
    ``enforce_eager`` calls are replayed as a CUDA graph, which needs a fixed shape.
    """

    lockstep: bool
    min_batch: int
    policy_batch: int
    fixed_shape: bool
    enforce_eager: bool = True


@dataclass
class RolloutStats:
    """Counts and seconds of one ``collect``. Worker seconds are summed over workers."""

    env_steps: int = 0
    chunks: int = 0
    policy_calls: int = 0
    reset_s: float = 0.0
    step_s: float = 0.0
    render_s: float = 0.0
    video_s: float = 0.0

    def add(self, done: Completion) -> None:
        self.env_steps += done.num_steps
        self.chunks += done.kind is Kind.STEP
        self.reset_s += done.reset_s
        self.step_s += done.step_s
        self.render_s += done.render_s
        self.video_s += done.video_s


@dataclass
class Running:
    """An episode in a slot."""

    episode: Episode
    rows: list[int] = field(default_factory=list)  # records so far; the last one holds the present observation
    next_row: int = -1  # where the observation after the chunk in flight goes
    steps: int = 0
    t: int = -1  # index of the last record
    episode_return: float = 0.0
    success: bool = False


class Rollout:
    """Runs plans of episodes on a pool, with a policy. Between two calls it keeps only which tasks a slot has built.

    Args:
        before_act: given the observations of each policy call before it is made.
    """

    def __init__(
        self,
        pool: Pool,
        slab: Slab,
        policy: Policy,
        env: EnvSpec,
        schedule: Schedule,
        device: torch.device,
        sections: Sections,
        before_act: Callable[[Mapping[str, torch.Tensor]], None] = lambda obs: None,
    ) -> None:
        self._pool, self._slab, self._policy, self._env = pool, slab, policy, env
        self._schedule, self._device, self._sections = schedule, device, sections
        self._before_act = before_act
        self._chunk = policy.spec.num_action_chunks
        self._built: list[deque[int]] = [deque(maxlen=64) for _ in range(pool.num_slots)]

    def collect(
        self, plan: Sequence[Episode], job: Job, on_episode: Callable[[EpisodeResult], None] = lambda result: None
    ) -> tuple[list[EpisodeResult], RolloutStats]:
        """Run every episode of ``plan``; results in the plan's order. Binds the policy to this rollout's env first: its
        task ids index other instructions than those of another env.

        Raises:
            ConfigError: the slab has too few rows for one episode in each slot.
            WorkerError: a worker died or hung.
        """
        self._policy.bind(self._env)
        run = _Run(self, plan, job)
        with torch.inference_mode():
            while run.unfinished:
                run.start_episodes()
                with self._sections("rollout/wait"):
                    done = self._pool.recv(run.wanted())
                for result in run.complete(done):
                    on_episode(result)
                if run.policy_may_run():
                    with self._sections("rollout/policy"):
                        run.act()
            with self._sections("rollout/policy"):
                run.value_final_observations()
        results = {result.episode.episode_id: result for result in run.results}
        return [results[episode.episode_id] for episode in plan], run.stats

    def pick(self, slot: int, pending: Sequence[Episode], busy_tasks: set[int]) -> int:
        """Index of the pending episode that ``slot`` should take: one of a task that it has built, else of a task that
        no other slot works on, else the first. Building a simulator costs as much as an episode."""
        built = self._built[slot]

        def cost(index: int) -> tuple[int, int]:
            task = pending[index].start.task_id
            return (0 if task in built else 1 if task not in busy_tasks else 2), index

        best = min(range(len(pending)), key=cost)
        task = pending[best].start.task_id
        if task in built:
            built.remove(task)
        built.append(task)
        return best


class _Run:
    """The state of one ``collect``."""

    def __init__(self, rollout: Rollout, plan: Sequence[Episode], job: Job) -> None:
        self._r, self._job = rollout, job
        self.pending = list(plan)
        self.running: dict[int, Running] = {}
        self.ready: list[int] = []
        self.idle = deque(range(min(job.num_slots, rollout._pool.num_slots)))
        self.rows = Rows(rollout._slab.rows, job.taken)
        self.results: list[EpisodeResult] = []
        self.stats = RolloutStats()
        self._rows_needed = job.rows_needed(rollout._chunk)
        self._reserved = 0  # rows that running episodes may still take
        self._policy_act = fast_act(rollout._policy, rollout._device, rollout._schedule.enforce_eager)
        episodes = len(plan) if job.keep_records else 1
        if episodes * self._rows_needed > self.rows.free:
            raise ConfigError(
                f"{episodes} episodes of {job.max_steps} control steps need {episodes * self._rows_needed} rows "
                f"and the slab has {self.rows.free}",
                "allocate the slab with rows_needed(…), or run fewer episodes",
            )

    @property
    def unfinished(self) -> bool:
        return bool(self.pending or self.running)

    def wanted(self) -> int:
        """Completions to wait for before the policy runs again."""
        schedule, in_flight = self._r._schedule, len(self.running) - len(self.ready)
        if schedule.lockstep:
            return in_flight
        return max(0, min(schedule.min_batch - len(self.ready), in_flight))

    def policy_may_run(self) -> bool:
        return bool(self.ready) and self.wanted() == 0

    # -- episodes ----------------------------------------------------------------------------------------------------

    def start_episodes(self) -> None:
        if not self._job.auto_reset and self.running:
            return
        while self.idle and self.pending and self.rows.free - self._reserved >= self._rows_needed:
            slot = self.idle.popleft()
            busy = {running.episode.start.task_id for running in self.running.values()}
            self._reset(slot, self.pending.pop(self._r.pick(slot, self.pending, busy)))

    def _reset(self, slot: int, episode: Episode) -> None:
        self._reserved += self._rows_needed
        running = self.running[slot] = Running(episode, next_row=self._take_row())
        start = episode.start
        command = Command(
            Kind.RESET, slot, next_row=running.next_row, episode_id=episode.episode_id, task_id=start.task_id,
            init_state_id=start.init_state_id, seed=start.seed, max_steps=self._job.max_steps,
            ignore_terminations=self._job.ignore_terminations, video=episode.video is not None,
        )  # fmt: skip
        self._r._pool.send(command, episode.video)

    def _take_row(self) -> int:
        self._reserved -= 1
        return self.rows.take()

    def _give_row(self, row: int) -> None:
        self._reserved += 1
        self.rows.give(row)

    def complete(self, done: Sequence[Completion]) -> list[EpisodeResult]:
        """Book what the workers have done; the episodes that ended."""
        ended = []
        for completion in done:
            self.stats.add(completion)
            running = self.running[completion.slot]
            if completion.kind is Kind.STEP:
                self._book_step(running, completion)
            if completion.ended:
                ended.append(self._end(completion.slot, completion.observed))
            else:
                self._present(completion.slot, running)
        return ended

    def _book_step(self, running: Running, completion: Completion) -> None:
        arrays, row = self._r._slab.arrays, running.rows[-1]
        running.steps += completion.num_steps
        running.episode_return += float(arrays["rewards"][row].sum(dtype=np.float64))
        running.success |= bool(arrays["success"][row])

    def _present(self, slot: int, running: Running) -> None:
        """A new observation stands in ``next_row``: it becomes the episode's present record."""
        if running.rows and not self._job.keep_records:
            self._give_row(running.rows.pop())
        running.rows.append(running.next_row)
        running.next_row = -1
        running.t += 1
        self.ready.append(slot)

    def _end(self, slot: int, observed: bool) -> EpisodeResult:
        running = self.running.pop(slot)
        final_row = running.next_row if observed else -1
        arrays, last = self._r._slab.arrays, running.rows[-1]
        result = EpisodeResult(
            running.episode, tuple(running.rows) if self._job.keep_records else (), running.episode_return,
            running.success, running.steps, bool(arrays["terminated"][last]), bool(arrays["truncated"][last]),
            final_row,
        )  # fmt: skip
        self._release(running, observed)
        self.idle.append(slot)
        self.results.append(result)
        return result

    def _release(self, running: Running, observed: bool) -> None:
        if running.next_row >= 0 and not observed:
            self._give_row(running.next_row)
        if not self._job.keep_records:
            for row in running.rows:
                self._give_row(row)
        taken = len(running.rows) + observed if self._job.keep_records else 0
        self._reserved -= self._rows_needed - taken

    # -- policy ------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Answer every ready slot and send the chunks out, batch by batch."""
        size = self._r._schedule.policy_batch
        slots, self.ready = sorted(self.ready, key=lambda s: self.running[s].episode.episode_id), []
        for first in range(0, len(slots), size):
            self._act(slots[first : first + size])

    def _act(self, slots: list[int]) -> None:
        rows = [self.running[slot].rows[-1] for slot in slots]
        self._write_keys(slots, rows)
        draws = [
            noise(self._job.seed, self._job.stream, running.episode.episode_id, running.t, self._tokens)
            for running in (self.running[slot] for slot in slots)
        ]
        self._answer(rows, np.stack(draws))
        self.stats.policy_calls += 1
        for slot in slots:
            self._step(slot)

    def _answer(self, rows: list[int], uniform: np.ndarray, only: str | None = None) -> None:
        """Show the policy the observations in ``rows`` and write there what it decides (or one field of it).

        Args:
            uniform: sampling noise, float32 [rows, T].
        """
        fill = self._r._schedule.policy_batch - len(rows) if self._r._schedule.fixed_shape else 0
        obs = self._observations(rows + rows[-1:] * fill)
        self._r._before_act(obs)
        draws = torch.from_numpy(np.concatenate([uniform, uniform[-1:].repeat(fill, axis=0)])).to(self._r._device)
        decision = self._policy_act(obs, draws, self._job.sampling)
        for name, values in decision.fields.items():
            if only in (None, name):
                self._r._slab.arrays[name][rows] = values[: len(rows)].cpu().numpy()

    def value_final_observations(self) -> None:
        """Let the policy say the value of each final observation: at the end, in full batches, so that no slot waits
        for it. Which ones share a batch is a function of the plan."""
        finals = sorted((r for r in self.results if r.final_row >= 0), key=lambda r: r.episode.episode_id)
        size, arrays = self._r._schedule.policy_batch, self._r._slab.arrays
        for first in range(0, len(finals), size):
            part = finals[first : first + size]
            rows = [result.final_row for result in part]
            arrays["task_id"][rows] = [result.episode.start.task_id for result in part]
            arrays["episode_id"][rows] = [result.episode.episode_id for result in part]
            arrays["t"][rows] = [len(result.rows) for result in part]
            arrays["version"][rows], arrays["num_steps"][rows] = self._job.version, 0
            self._answer(rows, np.zeros((len(rows), self._tokens), np.float32), only="value")

    def _write_keys(self, slots: list[int], rows: list[int]) -> None:
        arrays = self._r._slab.arrays
        for slot, row in zip(slots, rows, strict=True):
            running = self.running[slot]
            arrays["task_id"][row] = running.episode.start.task_id
            arrays["episode_id"][row] = running.episode.episode_id
            arrays["t"][row] = running.t
            arrays["version"][row] = self._job.version

    def _observations(self, rows: list[int]) -> dict[str, torch.Tensor]:
        arrays = self._r._slab.arrays
        names = [*self._r._env.obs, "task_id"]
        return {name: torch.from_numpy(arrays[name][rows]).to(self._r._device) for name in names}

    @property
    def _tokens(self) -> int:
        return self._r._slab.fields["action_tokens"].shape[0]

    def _step(self, slot: int) -> None:
        running, job = self.running[slot], self._job
        last_chunk = running.steps + self._r._chunk >= job.max_steps
        goes_on = not last_chunk or job.value_truncated or job.value_terminated
        running.next_row = self._take_row() if goes_on else -1
        command = Command(
            Kind.STEP, slot, row=running.rows[-1], next_row=running.next_row, episode_id=running.episode.episode_id,
            observe_truncated=job.value_truncated, observe_terminated=job.value_terminated,
        )  # fmt: skip
        self._r._pool.send(command)
