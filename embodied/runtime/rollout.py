"""The rollout scheduler: E episodes of a plan over S slots, with no slot idle.

    plan ──▶ pending ──RESET──▶ slot ──▶ ready ──▶ policy.act ──STEP──▶ slot ──▶ ready … ──▶ finished
               ▲                                                              │
               └───────────── the slot takes the next episode ◀───────────────┘

| waits for                                   | unblocked by                                         |
|---------------------------------------------|------------------------------------------------------|
| policy: slots that are due (``Schedule``)   | completions of workers, time                         |
| a slot: a command                           | the policy's answer, or the next episode of the plan |
| an episode: a slot and rows                 | an episode that ends                                 |
| an episode whose worker failed: a slot      | any slot that is free; its own is back later         |

What it does not know: tasks, rewards, tokens. Which slot runs an episode and which rows share a batch change no number:
sampling noise is a function of (seed, episode, chunk), and policy batches have one fixed shape.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from embodied.errors import ConfigError
from embodied.observe.timeline import Timeline
from embodied.observe.timing import Sections
from embodied.protocols import Policy
from embodied.random import Stream
from embodied.runtime.capture import fast_act
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.episodes import Episodes
from embodied.runtime.episodes import Job as Job
from embodied.runtime.episodes import RolloutStats as RolloutStats
from embodied.runtime.plan import noise
from embodied.runtime.pool import Event, Lost, Pool
from embodied.runtime.schedule import Schedule as Schedule
from embodied.runtime.slab import Rows, Slab
from embodied.types import EnvSpec, Episode, EpisodeResult

SHARE_INTERVAL_S = 1.0


class Rollout:
    """Runs plans of episodes on a pool, with a policy. Between two calls it keeps only which tasks a slot has built.

    Args:
        before_act: given the observations of each policy call before it is made.
        trace: folder that gets a trace of each ``collect``, or None.
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
        trace: Path | None = None,
    ) -> None:
        self._pool, self._slab, self._policy, self._env = pool, slab, policy, env
        self._schedule, self._device, self._sections = schedule, device, sections
        self._before_act, self._trace = before_act, trace
        self._chunk = policy.spec.num_action_chunks
        self._built: list[deque[int]] = [deque(maxlen=64) for _ in range(pool.num_slots)]

    def collect(
        self,
        plan: Sequence[Episode],
        job: Job,
        on_episode: Callable[[EpisodeResult], None] = lambda result: None,
        on_share: Callable[[float], None] = lambda share: None,
    ) -> tuple[list[EpisodeResult], RolloutStats]:
        """Run every episode of ``plan``; results in the plan's order. Binds the policy to this rollout's env first: its
        task ids index other instructions than those of another env.

        Args:
            on_episode: given each episode that ends.
            on_share: given once a second the share of the plan's control steps that are done, 0 to 1.

        Raises:
            ConfigError: the slab has too few rows for one episode in each slot.
            WorkerError: a worker failed too often in a row.
        """
        self._policy.bind(self._env)
        run = _Run(self, plan, job)
        with torch.inference_mode():
            run.start_episodes()
            say_at = time.monotonic() + SHARE_INTERVAL_S
            while run.episodes.unfinished:
                with self._sections("rollout/wait"):
                    events = self._pool.recv(run.wanted(), run.patience())
                for result in run.take(events):
                    on_episode(result)
                if (now := time.monotonic()) >= say_at:
                    say_at = now + SHARE_INTERVAL_S
                    on_share(run.episodes.share)
                due = run.due()  # before episodes start, so that no stage waits for a reset that has only begun
                run.start_episodes()  # before the policy answers, so that they are reset meanwhile
                if due:
                    with self._sections("rollout/policy"):
                        run.act(due)
            with self._sections("rollout/policy"):
                run.value_final_observations()
        run.close()
        results = {result.episode.episode_id: result for result in run.episodes.results}
        return [results[episode.episode_id] for episode in plan], run.episodes.stats

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

    def forget_built(self, slot: int) -> None:
        """A new worker serves the slot."""
        self._built[slot].clear()


class _Run:
    """The state of one ``collect``: which slots are idle, which work, which wait for the policy."""

    def __init__(self, rollout: Rollout, plan: Sequence[Episode], job: Job) -> None:
        self._r, self._job = rollout, job
        self._slots = min(job.num_slots, rollout._pool.num_slots)
        self._idle = deque(slot for slot in rollout._pool.up if slot < self._slots)
        self._working: set[int] = set()
        self._ready: dict[int, float] = {}  # slot → since when its observation waits for the policy, in that order
        self._restarts = rollout._pool.supervisor.total
        self._timeline = Timeline(self._slots, keep=rollout._trace is not None)
        free = Rows(rollout._slab.rows, job.taken)
        self.episodes = Episodes(plan, job, rollout._slab, free, rollout._chunk)
        self._policy_act = fast_act(rollout._policy, rollout._device, rollout._schedule.enforce_eager)
        episodes, rows = len(plan) if job.keep_records else 1, job.rows_needed(rollout._chunk)
        if episodes * rows > free.free:
            raise ConfigError(
                f"{episodes} episodes of {job.max_steps} control steps need {episodes * rows} rows "
                f"and the slab has {free.free}",
                "allocate the slab with rows_needed(…), or run fewer episodes",
            )

    # -- when --------------------------------------------------------------------------------------------------------

    def due(self) -> list[int]:
        """Slots that the policy answers now."""
        return self._r._schedule.due([*self._ready], self._moving, self._waited, self._slots)

    def wanted(self) -> int:
        """Completions to wait for; at least one unless the policy has something to do."""
        return 0 if self.due() else max(1, self._r._schedule.missing([*self._ready], self._moving, self._slots))

    def patience(self) -> float | None:
        """Seconds to wait for them at most."""
        return self._r._schedule.patience([*self._ready], self._waited)

    @property
    def _moving(self) -> Collection[int]:
        """Slots that work, and will be done even if the policy answers nobody: those of a batch wait for each other."""
        return self._working & self._r._pool.moving if self._r._pool.batch else self._working

    @property
    def _waited(self) -> float:
        return time.monotonic() - next(iter(self._ready.values())) if self._ready else 0.0

    # -- episodes ----------------------------------------------------------------------------------------------------

    def start_episodes(self) -> None:
        """Give idle slots the next episodes of the plan."""
        if not self._job.auto_reset and self.episodes.running:
            return
        while self._idle and self.episodes.may_start:
            slot = self._idle.popleft()
            busy = {running.episode.start.task_id for running in self.episodes.running.values()}
            self._send(*self.episodes.start(slot, self._r.pick(slot, self.episodes.pending, busy)))
        self._r._pool.flush()

    def _send(self, command: Command, video: str | None = None) -> None:
        self._working.add(command.slot)
        self._timeline.sent(command.slot)
        self._r._pool.send(command, video)

    def take(self, events: Sequence[Event]) -> list[EpisodeResult]:
        """Book what has happened; the episodes that ended."""
        ended = []
        for event in events:
            if isinstance(event, Completion):
                ended += self._complete(event)
            elif isinstance(event, Lost):
                self._lose(event)
            elif event.slot < self._slots:
                self._timeline.back(event.slot)
                self._idle.append(event.slot)
        return ended

    def _complete(self, done: Completion) -> list[EpisodeResult]:
        self._working.discard(done.slot)
        first = {"reset": done.reset_s} if done.kind == Kind.RESET else {"step": done.step_s + done.video_s}
        parts = {"round": done.round_s} if done.round_s else {**first, "render": done.render_s}
        self._timeline.worked(done.slot, done.began, parts, waits=not done.ended)
        result = self.episodes.book(done)
        if result is None:
            self._ready[done.slot] = time.monotonic()
            return []
        self._idle.append(done.slot)
        return [result]

    def _lose(self, lost: Lost) -> None:
        if lost.slot >= self._slots:
            return
        self._timeline.lost(lost.slot)
        self._working.discard(lost.slot)
        self._ready.pop(lost.slot, None)
        if lost.slot in self._idle:
            self._idle.remove(lost.slot)
        self._r.forget_built(lost.slot)
        episode = self.episodes.strike_out(lost.slot)
        if episode is not None and lost.suspects:
            count = self.episodes.in_vain(episode)
            self._r._pool.supervisor.episode_failed(lost.error, episode.episode_id, count, lost.suspects)

    def close(self) -> None:
        """All episodes have ended: what the run says of itself."""
        stats = self.episodes.stats
        stats.worker_restarts = self._r._pool.supervisor.total - self._restarts
        stats.slot_s, stats.slot_idle_s = self._timeline.slot_s, self._timeline.idle_s
        if self._r._trace is not None:
            number = len([*self._r._trace.glob("*.json")]) + 1
            side = "eval" if self._job.stream == Stream.EVAL_NOISE else "train"
            self._timeline.write(self._r._trace / f"{number:06d}-{side}.json")

    # -- policy ------------------------------------------------------------------------------------------------------

    def act(self, due: Sequence[int]) -> None:
        """Answer the slots that are due and send the chunks out, batch by batch."""
        size, running = self._r._schedule.policy_batch, self.episodes.running
        for slot in due:
            del self._ready[slot]
        slots = sorted(due, key=lambda slot: (self._r._pool.group_of(slot), running[slot].episode.episode_id))
        for first in range(0, len(slots), size):
            self._act(slots[first : first + size])

    def _act(self, slots: list[int]) -> None:
        running = [self.episodes.running[slot] for slot in slots]
        rows = [one.rows[-1] for one in running]
        with self._timeline.policy(len(rows)):
            self._write_keys(slots, rows)
            draws = [
                noise(self._job.seed, self._job.stream, one.episode.episode_id, one.t, self._tokens) for one in running
            ]
            self._answer(rows, np.stack(draws))
        self.episodes.stats.policy_calls += 1
        self.episodes.stats.policy_rows += len(rows)
        for slot in slots:
            self._send(self.episodes.step(slot))
        self._r._pool.flush()  # before the next batch is computed

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
        finals = sorted((r for r in self.episodes.results if r.final_row >= 0), key=lambda r: r.episode.episode_id)
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
            running = self.episodes.running[slot]
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
