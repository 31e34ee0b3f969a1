"""The rollout scheduler: E episodes of a plan over S slots, with no slot idle.

    plan ──▶ pending ──RESET──▶ slot ──▶ ready ──submit──▶ policy ──STEP──▶ slot ──▶ ready … ──▶ finished
               ▲                                                                        │
               └────────────────────── the slot takes the next episode ◀────────────────┘

| waits for                                   | unblocked by                                         |
|---------------------------------------------|------------------------------------------------------|
| policy: slots that are due (``Schedule``)   | completions of workers, time                         |
| a slot: a command                           | the policy's answer, or the next episode of the plan |
| an episode: a slot and rows                 | an episode that ends                                 |
| an episode whose worker failed: a slot      | any slot that is free; its own is back later         |

It stands between two ports: envs (:class:`embodied.runtime.ports.EnvPort`) and a policy
(:class:`embodied.runtime.policy.policy_port.PolicyPort`). What it does not know: tasks, rewards, pixels, tokens. Which
slot runs an episode and which rows share a batch change no number: sampling noise is a function of (seed, episode,
record), and policy batches have one fixed shape.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from embodied.errors import ConfigError, EmbodiedError
from embodied.observe.timeline import Timeline
from embodied.observe.timing import Sections
from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.policy.policy_port import Draw, PolicyPort
from embodied.runtime.ports import EnvPort, Event, Lost, not_redone
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.ahead import Arriving
from embodied.runtime.rollout.built_tasks import BuiltTasks
from embodied.runtime.rollout.episodes import Episodes
from embodied.runtime.rollout.episodes import Job as Job
from embodied.runtime.rollout.episodes import RolloutStats as RolloutStats
from embodied.runtime.rollout.schedule import Schedule as Schedule
from embodied.runtime.rollout.several import Several
from embodied.runtime.rollout.traces import Traces
from embodied.types import Episode, EpisodeResult

SHARE_INTERVAL_S = 1.0


class Rollout:
    """Runs plans of episodes on envs, with a policy. Between two calls it keeps only which tasks are built.

    Args:
        records: store whose rows the episodes lease. Rows of kept records stay leased until they are given back.
        chunk: K, actions of a record.
        traces: which calls of ``collect`` leave a trace; none by default.
    """

    def __init__(
        self, envs: EnvPort, policy: PolicyPort, records: RecordStore, chunk: int, schedule: Schedule,
        sections: Sections, traces: Traces | None = None,
    ) -> None:  # fmt: skip
        self._envs, self._policy, self.records, self._chunk = envs, policy, records, chunk
        self._schedule, self._sections = schedule, sections
        self._traces = traces or Traces()
        self._built = BuiltTasks()
        self._ahead: dict[int, Episode] = {}  # slot → episode to whose start it was sent

    def forget(self) -> None:
        """Forget which tasks are built: new workers serve the slots."""
        self._built = BuiltTasks()

    def reset_ahead(self, plan: Sequence[Episode], job: Job) -> None:
        """Sends slots to the starts of the first episodes of ``plan``, and returns at once. :meth:`collect` is to be
        given the same next. No slot may have a command, nor be one of a batch."""
        booked = Episodes(plan, job, self.records, self._chunk)
        for slot in [slot for slot in self._envs.up if slot < job.num_slots][: len(plan)]:
            index = self._built.pick(self._envs.simulators_of(slot), booked.pending, self._ahead.values())
            self._ahead[slot] = booked.pending.pop(index)
            self._envs.send(*booked.reset(slot, self._ahead[slot]))
        self._envs.flush()

    def collect(
        self, plan: Sequence[Episode], job: Job, on_episode: Callable[[EpisodeResult], None] = lambda result: None,
        on_share: Callable[[float], None] = lambda share: None,
    ) -> tuple[list[EpisodeResult], RolloutStats]:  # fmt: skip
        """Runs every episode of ``plan``; returns results in the plan's order, and counts. ``on_share`` gets the share
        that is done.

        Args:
            on_episode: given each episode that ends or is given up.
            on_share: given once a second the share of the plan's control steps that are done, 0 to 1.

        Raises:
            ConfigError: the slab has too few rows for one episode in each slot.
            WorkerError: a worker failed too often in a row.
        """
        before, whole = frozenset(self.records.leased), False
        try:
            found = self._collect(plan, job, on_episode, on_share)
            whole = True
            return found
        except BaseException:
            for lease in frozenset(self.records.leased) - before:
                self.records.give_back(lease)
            raise
        finally:
            self._policy.end(whole)

    def _collect(
        self, plan: Sequence[Episode], job: Job, on_episode: Callable[[EpisodeResult], None],
        on_share: Callable[[float], None],
    ) -> tuple[list[EpisodeResult], RolloutStats]:  # fmt: skip
        booked = Episodes(plan, job, self.records, self._chunk)
        self._check_rows(len(plan) if job.keep_records else 1, job)
        (run := self._begin(booked, job)).expect(self._ahead)
        self._ahead = {}
        run.start_episodes()
        try:
            self._until_ended(booked, lambda: self._advance(run, on_episode), on_share)
        except EmbodiedError as error:
            if job.keep_records and not job.retry_safe:
                error.message += f"\n{booked.dropped}"
            raise
        with self._sections("rollout/policy"):
            run.value_final_observations()
        stats = run.close()
        self._traces.end(run.timeline, job)
        return booked.in_order(plan), stats

    def keep(self, results: Iterable[EpisodeResult]) -> None:
        """Gives back every row but those of ``results``."""
        self.records.keep(results)

    @staticmethod
    def _until_ended(booked: Episodes, advance: Callable[[], None], on_share: Callable[[float], None]) -> None:
        """Advances until the episodes of a plan have ended."""
        say_at = time.monotonic() + SHARE_INTERVAL_S
        while booked.unfinished:
            advance()
            if (now := time.monotonic()) >= say_at:
                say_at = now + SHARE_INTERVAL_S
                on_share(booked.share)

    def _advance(self, run: Run, on_episode: Callable[[EpisodeResult], None], most_s: float = math.inf) -> None:
        """Takes what envs have done, in at most ``most_s`` seconds; lets episodes begin and the policy answer."""
        with self._sections("rollout/wait"):
            patience = min(most_s, math.inf if (left := run.patience()) is None else left)
            events = self._envs.recv(run.wanted(), None if patience == math.inf else patience)
        for result in run.take(events):
            on_episode(result)
        due = run.due()  # asked before episodes start, so that no stage waits for a reset that has only begun
        run.start_episodes()  # starts before the policy answers, so that episodes are reset meanwhile
        if due or self._policy.pending:
            with self._sections("rollout/policy"):
                run.submit(due)
                run.answer()

    def _check_rows(self, episodes: int, job: Job) -> None:
        """Refuses episodes for which no rows will be free. Raises :class:`ConfigError`."""
        rows = job.rows_needed(self._chunk)
        if episodes * rows > self.records.free:
            raise ConfigError(
                f"{episodes} episodes of {job.max_steps} control steps need {episodes * rows} rows "
                f"and the slab has {self.records.free}",
                "allocate the slab with rows_needed(…), run fewer episodes, or give back the rows of earlier ones",
            )

    def _begin(self, booked: Episodes | Several, job: Job) -> Run:
        self._policy.begin(Draw(job.sampling, job.seed, job.stream))
        slots = min(job.num_slots, self._envs.num_slots)
        timeline = self._traces.begin(slots, job)
        return Run(self._envs, self._policy, self._schedule, self._built, booked, timeline, slots)


class Run:
    """State of one rollout: which slots are idle, which work, which wait for the policy, which it answers."""

    def __init__(
        self, envs: EnvPort, policy: PolicyPort, schedule: Schedule, built: BuiltTasks, episodes: Episodes | Several,
        timeline: Timeline, num_slots: int,
    ) -> None:  # fmt: skip
        self._envs, self._policy, self._schedule, self._built = envs, policy, schedule, built
        self.episodes, self.timeline, self.num_slots = episodes, timeline, num_slots
        self._idle = deque(slot for slot in envs.up if slot < num_slots)
        self._working: set[int] = set()
        self._asked: set[int] = set()  # slots whose request the policy has
        self._ready: dict[int, float] = {}  # slot → since when its observation waits for the policy, in that order
        self._restarts = envs.restarts
        self._arriving = Arriving()

    def expect(self, ahead: Mapping[int, Episode]) -> None:
        """Begins the episodes to whose starts slots were sent (:meth:`Rollout.reset_ahead`)."""
        self._idle = deque(slot for slot in self._idle if slot not in ahead)
        self._working.update(ahead)
        self._arriving = Arriving.of(ahead, self.episodes, self.timeline, time.monotonic())

    # -- when --------------------------------------------------------------------------------------------------------

    def due(self) -> list[int]:
        """Lists the slots whose observations the policy should answer now."""
        return self._schedule.due([*self._ready], self._moving, self._waited, self.num_slots)

    def wanted(self) -> int:
        """Returns how many completions to wait for; at least one unless the policy has something to do."""
        if self._asked or self.due():
            return 0
        return max(1, self._schedule.missing([*self._ready], self._moving, self.num_slots))

    def patience(self) -> float | None:
        """Returns the most seconds to wait for completions; None = without limit."""
        return self._schedule.patience([*self._ready], self._waited)

    @property
    def _moving(self) -> set[int]:
        """Slots that work, and will be done even if the policy is given no other slot."""
        return self._working.intersection(self._envs.moving) | self._asked

    @property
    def _waited(self) -> float:
        return time.monotonic() - next(iter(self._ready.values())) if self._ready else 0.0

    # -- episodes ----------------------------------------------------------------------------------------------------

    def start_episodes(self) -> None:
        """Give idle slots the next episodes of the plan."""
        if not self.episodes.job.auto_reset and self.episodes.running:
            return
        while self._idle and self.episodes.may_start:
            slot = self._idle.popleft()
            others = (running.episode for running in self.episodes.running.values())
            index = self._built.pick(self._envs.simulators_of(slot), self.episodes.pending, others)
            self._send(*self.episodes.start(slot, index))
        self._envs.flush()

    def _send(self, command: Command, video: Video | None = None, draws: Draws | None = None) -> None:
        self._working.add(command.slot)
        self.timeline.sent(command.slot)
        self._envs.send(command, video, draws)

    def take(self, events: Sequence[Event]) -> list[EpisodeResult]:
        """Books events of the env port. Returns the episodes that ended or were given up."""
        ended = []
        for event in events:
            if isinstance(event, Completion):
                ended += self._complete(event)
            elif isinstance(event, Lost):
                ended += self._lose(event)
            elif event.slot < self.num_slots:
                self.timeline.back(event.slot)
                self._idle.append(event.slot)
        return ended

    def _complete(self, done: Completion) -> list[EpisodeResult]:
        self._working.discard(done.slot)
        if done.slot in self._arriving.observes:
            self._arrive(done)
            return []
        first = {"reset": done.reset_s} if done.kind == Kind.RESET else {"step": done.step_s + done.video_s}
        parts = {"round": done.round_s} if done.round_s else {**first, "render": done.render_s}
        self.timeline.worked(done.slot, done.began, parts, waits=not done.ended)
        result = self.episodes.book(done)
        if result is None:
            self._ready[done.slot] = time.monotonic()
            return []
        self._idle.append(done.slot)
        return [result] if self.episodes.giving_up.counts(result.episode) else []

    def _arrive(self, done: Completion) -> None:
        """Lets a slot that was reset ahead observe; one whose episode is not run here is idle."""
        command = self._arriving.arrive(done, self.timeline)
        if command is None:
            self._idle.append(done.slot)
            return
        self.episodes.running[done.slot].stats.add(done)
        self._send(command)

    def _lose(self, lost: Lost) -> list[EpisodeResult]:
        slot = lost.slot
        self._built.forget(slot)  # of slots that shared simulators, all are lost, and these have the number of one
        if slot >= self.num_slots:
            return []
        self.timeline.lost(slot)
        self._working.discard(slot)
        self._ready.pop(slot, None)
        self._arriving.observes.pop(slot, None)
        if slot in self._asked:
            self._asked.remove(slot)
            self._policy.cancel(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        if slot in self.episodes.running and not self.episodes.job.retry_safe:
            raise not_redone(f"episode {self.episodes.running[slot].episode.episode_id}", lost) from lost.error
        episode = self.episodes.requeue(slot)
        return self._blame(lost, episode) if episode is not None and lost.suspects else []

    def _blame(self, lost: Lost, episode: Episode) -> list[EpisodeResult]:
        """Counts a failure against the episode that its worker was busy with. If the job says so it is given up, and
        returned."""
        if self.episodes.giving_up.judged_later(episode):
            self.episodes.put_off(episode)
            self._envs.forgive(lost.slot)
            return []
        count, most = self.episodes.in_vain(episode), lost.tries(self.episodes.job.gives_up_after)
        if most is None or lost.suspects > 1 or count < most or not self.episodes.giving_up.allowed:
            self._envs.blame(lost, episode.episode_id, count)
            return []
        self._envs.forgive(lost.slot)
        return self.episodes.give_up(episode, lost.why)

    def goes_on(self, timeline: Timeline) -> None:
        """Notes all that follows on another timeline."""
        timeline.take_over(self.timeline)
        self.timeline = timeline

    def close(self) -> RolloutStats:
        """Returns the counts and seconds of the rollout; all its episodes have ended. Later ones are counted anew."""
        stats, restarts = self.episodes.stats, self._envs.restarts
        stats.worker_restarts, self._restarts = restarts - self._restarts, restarts
        stats.slot_idle_s, stats.slot_s = self.timeline.idle_s, self.timeline.slot_s
        return stats

    # -- policy ------------------------------------------------------------------------------------------------------

    def submit(self, due: Sequence[int]) -> None:
        """Submit the slots that are due to the policy. Slots that wait for each other stand next to each other."""
        running = self.episodes.running
        for slot in due:
            del self._ready[slot]
        slots = sorted(due, key=lambda slot: (self._envs.group_of(slot), running[slot].episode.episode_id))
        self._asked.update(slots)
        self._policy.submit([self.episodes.request(slot) for slot in slots])

    def answer(self) -> None:
        """Let the policy work, and send out the chunks that it has decided."""
        with self.timeline.policy() as answered:
            requests = self._policy.poll()
            answered += requests
        if requests:
            self.episodes.stats.policy_calls += 1
            self.episodes.stats.policy_rows += len(requests)
        for request in requests:
            self._asked.remove(request.slot)
            self._send(self.episodes.step(request.slot))
        self._envs.flush()  # wakes the workers before the policy goes on

    def value_final_observations(self) -> None:
        """Let the policy give the value of each final observation. This is done at the end, in full batches, so that no
        slot waits for it. Which observations share a batch is a function of the plan."""
        self._policy.value(self.episodes.final_requests())
