"""The episodes of several plans as those of one: a slot that finds none left in a plan takes one of the next.

    plan of iteration i        ended  ended  runs
    plan of iteration i + 1    runs   waits  waits     ◀── an idle slot takes this one
    plan of iteration i + 2    waits  waits  waits

Each plan has books of its own (:class:`embodied.runtime.rollout.episodes.Episodes`) with its job: counts, results and
weight version of an episode are those of its plan, whatever else runs at the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion
from embodied.runtime.policy.policy_port import Request
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.episodes import Episodes, Job, RolloutStats, Running
from embodied.runtime.rollout.giving_up import GivingUp
from embodied.types import Episode, EpisodeResult, Lease


class Several:
    """Plans whose episodes run at the same time, in the order of their iterations.

    Args:
        job: of the first plan. Those of others differ in iteration and weight version alone.

    Attributes:
        stats: counts that belong to no plan: calls of the policy.
        closed: no episode may begin.
        began: iteration → monotonic time when its first episode began.
    """

    def __init__(self, job: Job, records: RecordStore) -> None:
        self.job, self._records = job, records
        self.plans: list[Episodes] = []
        self.stats, self.closed = RolloutStats(), False
        self.giving_up = GivingUp()  # of trainings, which give up none
        self.began: dict[int, float] = {}

    def add(self, plan: Episodes) -> None:
        """Adds a plan, after those of earlier iterations and of its own."""
        self.plans = sorted([*self.plans, plan], key=lambda one: one.job.iteration)

    @property
    def leases(self) -> Iterator[Lease]:
        """Leases of all episodes, those that have ended included."""
        for plan in self.plans:
            for result in plan.results:
                yield from result.leases
            for running in plan.running.values():
                yield from running.leases
                yield from [running.next] if running.next else []

    @property
    def running(self) -> dict[int, Running]:
        """Running episodes by slot."""
        return {slot: running for plan in self.plans for slot, running in plan.running.items()}

    @property
    def pending(self) -> list[Episode]:
        """Waiting episodes of the first plan that has any."""
        first = self._first
        return [] if first is None else first.pending

    @property
    def _first(self) -> Episodes | None:
        return next((plan for plan in self.plans if plan.pending), None)

    @property
    def may_start(self) -> bool:
        """True if an episode waits and there are rows for it."""
        if self.closed or (first := self._first) is None:
            return False
        return self._records.free - sum(plan.reserved for plan in self.plans) >= first.rows_needed

    def start(self, slot: int, index: int) -> tuple[Command, Video | None, Draws | None]:
        """Begins the waiting episode ``pending[index]`` in ``slot``: see :meth:`Episodes.start`."""
        first = self._first
        assert first is not None
        self.began.setdefault(first.job.iteration, time.monotonic())
        return first.start(slot, index)

    def step(self, slot: int) -> Command:
        """Makes the command that executes the chunk in the slot's present record."""
        return self._of(slot).step(slot)

    def request(self, slot: int) -> Request:
        """Makes the request for a decision on the slot's present observation."""
        return self._of(slot).request(slot)

    def final_requests(self) -> list[Request]:
        """Makes the requests for the values of final observations of the first plan."""
        return self.plans[0].final_requests()

    def book(self, completion: Completion) -> EpisodeResult | None:
        """Books an executed command of a slot. Returns the result if its episode has ended."""
        return self._of(completion.slot).book(completion)

    def requeue(self, slot: int) -> Episode | None:
        """Puts the episode of a failed worker's slot, if it ran one, back at the head of its plan's line."""
        return self._of(slot).requeue(slot) if slot in self.running else None

    def in_vain(self, episode: Episode) -> int:
        """Counts a worker's failure while it was busy with ``episode``, which waits again."""
        return self._waiting(episode).in_vain(episode)

    def put_off(self, episode: Episode) -> None:
        """Lets a waiting episode wait behind the one that is run once more."""
        self._waiting(episode).put_off(episode)

    def give_up(self, episode: Episode, why: str) -> list[EpisodeResult]:
        """Gives up a waiting episode: it could not be run."""
        return self._waiting(episode).give_up(episode, why)

    def _of(self, slot: int) -> Episodes:
        return next(plan for plan in self.plans if slot in plan.running)

    def _waiting(self, episode: Episode) -> Episodes:
        return next(plan for plan in self.plans if episode in plan.pending)
