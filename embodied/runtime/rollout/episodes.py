"""The book-keeping of one ``collect``: which episodes wait, run and have ended, and which rows and counts are theirs.

An episode whose worker fails is requeued as if it had never begun: its rows are free again, its counts are forgotten,
and it waits at the head of the line for the next slot. A redone episode gives the same numbers: its noise is a function
of (seed, episode, chunk), and its start is part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from embodied.instructions import FAILURES
from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.random import Stream
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.policy.policy_port import Request
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.giving_up import GivingUp
from embodied.runtime.slab import INFO
from embodied.types import Episode, EpisodeResult, Lease, Sampling


@dataclass(frozen=True)
class Job:
    """Settings under which a plan of episodes is run: sampling, step limit, what is recorded.

    Args:
        max_steps: step limit of each episode, control steps.
        keep_records: leave every record in the slab (training), or reuse its row once the episode has gone on
            (evaluation).
        stream: separates the sampling noise of training and evaluation, and says whose rewards count.
        version: weight version that acts, written into each record.
        value_truncated: also observe the end of a truncated episode, and let the policy give the value of that; needs
            ``keep_records`` and one more row an episode.
        value_terminated: the same for terminated episodes.
        retry_safe: True: an episode that was lost with its worker is redone; False: its loss ends the rollout.
        gives_up_after: after so many workers that an episode has ended, it counts as one that could not be run, and the
            others go on; None: it ends the rollout.
        iteration: of the training, for its traces.
        info_on_video, frame_interval: see :class:`embodied.runtime.messages.Video`.
    """

    sampling: Sampling
    seed: int
    stream: Stream
    version: int
    max_steps: int
    keep_records: bool
    num_slots: int  # slots of the pool that are used
    ignore_terminations: bool = False
    auto_reset: bool = True
    value_truncated: bool = False
    value_terminated: bool = False
    retry_safe: bool = True
    gives_up_after: int | None = None
    info_on_video: bool = True
    frame_interval: int | None = 1
    iteration: int = 0

    def rows_needed(self, chunk: int) -> int:
        """Returns the most slab rows that one episode takes, with ``chunk`` actions a record."""
        if not self.keep_records:
            return 2
        return -(-self.max_steps // chunk) + (self.value_truncated or self.value_terminated)


@dataclass
class RolloutStats:
    """Counts and seconds of one rollout. Only attempts that ran to their end count. Worker seconds are summed over
    workers."""

    env_steps: int = 0
    chunks: int = 0
    policy_calls: int = 0
    policy_rows: int = 0  # observations answered, in whichever attempt
    reset_s: float = 0.0
    step_s: float = 0.0
    render_s: float = 0.0
    video_s: float = 0.0
    worker_restarts: int = 0
    failures: int = 0  # verdicts that failed
    slot_s: float = 0.0  # seconds, summed over the slots in use
    slot_idle_s: float = 0.0  # the part of slot_s without a command: waiting for the policy or an episode

    def add(self, done: Completion) -> None:
        """Adds the counts and seconds of an executed command."""
        self.env_steps += done.num_steps
        self.chunks += done.kind == Kind.STEP
        self.reset_s += done.reset_s
        self.step_s += done.step_s
        self.render_s += done.render_s
        self.video_s += done.video_s

    def merge(self, other: RolloutStats) -> None:
        """Adds the counts and seconds of another rollout."""
        for counted in fields(self):
            setattr(self, counted.name, getattr(self, counted.name) + getattr(other, counted.name))


@dataclass
class Running:
    """A running attempt at an episode, in a slot."""

    episode: Episode
    leases: list[Lease] = field(default_factory=list)  # records so far; the last one holds the present observation
    next: Lease | None = None  # row for the observation after the chunk in flight
    steps: int = 0
    t: int = -1  # index of the last record
    episode_return: float = 0.0
    success: bool = False
    written: int | None = None  # tokens so far
    stats: RolloutStats = field(default_factory=RolloutStats)

    @property
    def row(self) -> int:
        """Slab row of the present record."""
        return self.leases[-1].row

    @property
    def next_row(self) -> int:
        return -1 if self.next is None else self.next.row


class Episodes:
    """Tracks the episodes of a plan: waiting, running in slots, ended. Makes the commands for slots, as
    free rows allow.

    Args:
        chunk: actions a record.
    """

    def __init__(self, plan: Sequence[Episode], job: Job, records: RecordStore, chunk: int) -> None:
        self.job, self._records, self._chunk = job, records, chunk
        self.rows_needed = job.rows_needed(chunk)
        self._info = {name.removeprefix(INFO): array for name, array in records.arrays.items() if name.startswith(INFO)}
        self.reserved = 0  # rows that running episodes may still take
        self._vain: Counter[int] = Counter()
        self.giving_up = GivingUp()
        self._total = len(plan)
        self.pending = list(plan)
        self.running: dict[int, Running] = {}
        self.results: list[EpisodeResult] = []
        self.stats = RolloutStats()

    @property
    def unfinished(self) -> bool:
        return bool(self.pending or self.running)

    def in_order(self, plan: Sequence[Episode]) -> list[EpisodeResult]:
        """Returns the results in the order of the plan."""
        found = {result.episode.episode_id: result for result in self.results}
        return [found[episode.episode_id] for episode in plan]

    @property
    def share(self) -> float:
        """Share of the plan's control steps that are done, 0 to 1. An episode that ended early counts in full."""
        begun = sum(running.steps for running in self.running.values()) / self.job.max_steps
        return (len(self.results) + begun) / self._total

    @property
    def dropped(self) -> str:
        """What is lost with the rollout, as a sentence."""
        whole, records = len(self.results), sum(len(result.rows) for result in self.results)
        return (
            f"{whole} whole episodes ({records} records) and {len(self.running)} in progress of this rollout are "
            f"dropped, {len(self.pending)} were not begun; none was begun twice"
        )

    @property
    def may_start(self) -> bool:
        """True if an episode waits and there are rows for it, and no other must run alone."""
        has_room = self._records.free - self.reserved >= self.rows_needed
        return bool(self.pending) and has_room and (self.giving_up.allowed or not self.running)

    def start(self, slot: int, index: int) -> tuple[Command, Video | None, Draws | None]:
        """Begins the waiting episode ``pending[index]`` in ``slot``. Returns the command, its video, and its
        perturbation."""
        episode = self.pending.pop(index)
        self.reserved += self.rows_needed
        running = self.running[slot] = Running(episode, next=self._lease(episode))
        return self.reset(slot, episode, running.next_row)

    def reset(self, slot: int, episode: Episode, next_row: int = -1) -> tuple[Command, Video | None, Draws | None]:
        """Makes the command that brings a slot to an episode's start, with its video, and its perturbation."""
        start = episode.start
        command = Command(
            Kind.RESET, slot, next_row=next_row, task_id=start.task_id, init_state_id=start.init_state_id,
            seed=start.seed, max_steps=self.job.max_steps, ignore_terminations=self.job.ignore_terminations,
            video=episode.video is not None, perturbed=episode.perturbed is not None,
            evaluation=self.job.stream == Stream.EVAL_NOISE,
        )  # fmt: skip
        job, video = self.job, None
        if episode.video is not None:
            video = Video(episode.video, job.info_on_video, job.frame_interval)
        return command, video, self._draws(episode)

    def _draws(self, episode: Episode) -> Draws | None:
        if (perturbed := episode.perturbed) is None:
            return None
        stream = Stream.EVAL_PERTURBATION if self.job.stream == Stream.EVAL_NOISE else Stream.TRAIN_PERTURBATION
        return Draws(perturbed.condition.by, self.job.seed, int(stream), perturbed.place)

    def step(self, slot: int) -> Command:
        """Makes the command that executes the chunk in the slot's present record."""
        running, job = self.running[slot], self.job
        last_chunk = running.steps + self._chunk >= job.max_steps
        goes_on = not last_chunk or job.value_truncated or job.value_terminated
        running.next = self._lease(running.episode) if goes_on else None
        return Command(
            Kind.STEP, slot, row=running.row, next_row=running.next_row,
            observe_truncated=job.value_truncated, observe_terminated=job.value_terminated,
        )  # fmt: skip

    def request(self, slot: int) -> Request:
        """Makes the request for a decision on the slot's present observation; the record's keys stand in its row."""
        running = self.running[slot]
        row, episode = running.row, running.episode
        self._write_keys(row, episode, running.t)
        return Request(slot, row, episode.episode_id, running.t, self.job.version)

    def final_requests(self) -> list[Request]:
        """Makes the requests for the values of final observations. Their order is a function of the plan."""
        finals = sorted((r for r in self.results if r.final_row >= 0), key=lambda r: r.episode.episode_id)
        return [self._final_request(result) for result in finals]

    def _final_request(self, result: EpisodeResult) -> Request:
        """Makes the request for the value of the observation after the last step. That observation is no record."""
        row, t = result.final_row, len(result.rows)
        self._write_keys(row, result.episode, t)
        self._records.arrays["num_steps"][row] = 0
        return Request(-1, row, result.episode.episode_id, t, self.job.version)

    def _write_keys(self, row: int, episode: Episode, t: int) -> None:
        arrays = self._records.arrays
        arrays["task_id"][row] = episode.start.task_id
        arrays["episode_id"][row] = episode.episode_id
        arrays["t"][row] = t
        arrays["version"][row] = self.job.version

    def book(self, completion: Completion) -> EpisodeResult | None:
        """Books an executed command of a slot. Returns the result if its episode has ended; otherwise its next
        observation is there."""
        running = self.running[completion.slot]
        running.stats.add(completion)
        if completion.kind == Kind.STEP:
            self._book_step(running, completion)
        if completion.ended:
            return self._end(completion.slot, completion.observed)
        self._present(running)
        return None

    def requeue(self, slot: int) -> Episode | None:
        """Puts the episode of a failed worker's slot, if it ran one, back in line; nothing of the attempt is kept."""
        running = self.running.pop(slot, None)
        if running is None:
            return None
        for lease in (*running.leases, *([running.next] if running.next else [])):
            self._give_back(lease)
        self.reserved -= self.rows_needed
        self.pending.insert(0, running.episode)
        self.giving_up.lost(running.episode)
        return running.episode

    def put_off(self, episode: Episode) -> None:
        """Lets a waiting episode wait behind the one that is run once more."""
        others = [one for one in self.pending if one is not episode]
        first = 0 if not others or self.giving_up.counts(others[0]) else 1
        self.pending[:] = [*others[:first], episode, *others[first:]]

    def give_up(self, episode: Episode, why: str) -> list[EpisodeResult]:
        """Gives up a waiting episode: it could not be run. Returns its result; none of one that was run before."""
        self.pending.remove(episode)
        counts = self.giving_up.counts(episode)
        found = [EpisodeResult(episode, (), 0.0, False, 0, False, False, not_run=why)] if counts else []
        self.results += found
        self.pending[:] = self.giving_up.next_ones(self.pending, self.results)
        return found

    def in_vain(self, episode: Episode) -> int:
        """Counts a worker's failure while it was busy with ``episode``. Returns how many there were."""
        self._vain[episode.episode_id] += 1
        return self._vain[episode.episode_id]

    def _lease(self, episode: Episode) -> Lease:
        self.reserved -= 1
        return self._records.lease(episode.episode_id, self.job.version)

    def _give_back(self, lease: Lease) -> None:
        self.reserved += 1
        self._records.give_back(lease)

    def _book_step(self, running: Running, completion: Completion) -> None:
        arrays, row = self._records.arrays, running.row
        running.steps += completion.num_steps
        running.episode_return += float(arrays["rewards"][row].sum(dtype=np.float64))
        running.success |= bool(arrays["success"][row])
        if (failures := self._info.get(FAILURES)) is not None:
            running.stats.failures += int(failures[row])
        if "length" in arrays:
            running.written = (running.written or 0) + int(arrays["length"][row])

    def _present(self, running: Running) -> None:
        """Make the next row, which holds a new observation, the episode's present record."""
        if running.leases and not self.job.keep_records:
            self._give_back(running.leases.pop())
        assert running.next is not None
        running.leases.append(running.next)
        running.next = None
        running.t += 1

    def _end(self, slot: int, observed: bool) -> EpisodeResult:
        running = self.running.pop(slot)
        final = (running.next,) if observed and running.next is not None else ()
        arrays, last = self._records.arrays, running.row
        kept = tuple(running.leases) if self.job.keep_records else ()
        result = EpisodeResult(
            running.episode, tuple(lease.row for lease in kept), running.episode_return,
            running.success, running.steps, bool(arrays["terminated"][last]), bool(arrays["truncated"][last]),
            running.next_row if final else -1, leases=(*kept, *final), written=running.written, last_row=last,
            info={name: int(array[last]) for name, array in self._info.items()},
            progress=float(arrays["progress"][last]), solved_at=int(arrays["solved_at"][last]),
        )  # fmt: skip
        self._release(running, observed)
        self.giving_up.ended()
        if self.giving_up.counts(result.episode):
            self.stats.merge(running.stats)
            self.results.append(result)
        return result

    def _release(self, running: Running, observed: bool) -> None:
        if running.next is not None and not observed:
            self._give_back(running.next)
        if not self.job.keep_records:
            for lease in running.leases:
                self._give_back(lease)
        taken = len(running.leases) + observed if self.job.keep_records else 0
        self.reserved -= self.rows_needed - taken
