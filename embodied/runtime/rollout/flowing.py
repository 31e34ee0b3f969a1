"""A rollout that flows over the border of iterations, so that no slot waits for the last episodes of one.

    plan_ahead(i), plan_ahead(i + 1), …        plans whose weights are there
    collect(i)        ──▶ returns when the episodes of i have ended; slots without one run those of i + 1 …
    go_on()           ──▶ returns when what is waited for is done (``watch``)

It changes no number: an episode's weights are those of its plan, its noise a function of (seed, episode, record).
An evaluation needs all slots, and other weights: before it the running episodes end (``drain``), others go on after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import TypeVar

from embodied.runtime.rollout.episodes import Episodes, Job, RolloutStats
from embodied.runtime.rollout.rollout import Rollout, Run
from embodied.runtime.rollout.several import Several
from embodied.types import Episode, EpisodeResult, Lease

T = TypeVar("T")
TICK_S = 0.02
"""Seconds after which it is asked again whether what is waited for is done."""

Look = Callable[[bool], bool]
"""Whether what is waited for is done. It may plan ahead then. Given True, nothing runs, and it may wait."""


@dataclass(frozen=True)
class Planned:
    """A plan that runs ahead."""

    plan: list[Episode]
    job: Job
    booked: Episodes


class Flowing(Rollout):
    """Runs the plans of several iterations at a time, on slots that are shared by them."""

    _flow: Run | None = None
    _several: Several | None = None
    _look: Look | None = None
    _planned: tuple[Planned, ...] = ()
    _held: tuple[Lease, ...] = ()

    def plan_ahead(self, plan: Sequence[Episode], job: Job) -> Planned:
        """Lets slots that have no other episode run those of ``plan``. :meth:`collect` is to be given the same."""
        found = next((one for one in self._planned if (one.plan, one.job) == ([*plan], job)), None)
        if found is None:
            found = Planned([*plan], job, Episodes(plan, job, self.records, self._chunk))
            self._several = self._several or Several(job, self.records)
            self._several.add(found.booked)
            self._planned += (found,)
        return found

    def watch(self, look: Look | None) -> None:
        """Has ``look`` asked in the midst of the rollout, until it returns True."""
        self._look = look

    def hold(self, results: Iterable[EpisodeResult] = ()) -> None:
        """Keeps the rows of ``results`` until the next call."""
        held, self._held = self._held, ()  # a signal may come between two of them
        for lease in held:
            self.records.give_back(lease)
        self._held = tuple(lease for result in results for lease in result.leases)

    def keep(self, results: Iterable[EpisodeResult]) -> None:
        self.records.keep(results, [*self._held, *(self._several.leases if self._several else ())])

    def collect(
        self, plan: Sequence[Episode], job: Job, on_episode: Callable[[EpisodeResult], None] = lambda result: None,
        on_share: Callable[[float], None] = lambda share: None,
    ) -> tuple[list[EpisodeResult], RolloutStats]:  # fmt: skip
        try:
            if not job.keep_records:
                assert self._flow is None, "drain() comes before an evaluation"
                return super().collect(plan, job, on_episode, on_share)
            return self._collect_planned(self.plan_ahead(plan, job), on_episode, on_share)
        except BaseException:
            self._abandon()
            raise

    def go_on(self) -> None:
        """Runs what is planned until what is waited for is done (:meth:`watch`)."""
        try:
            while self._look is not None:
                self._turn()
        except BaseException:
            self._abandon()
            raise

    def meanwhile(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in a thread, and what is planned beside it; returns its result. After an error here nobody
        waits for the thread: it may wait for other processes, which wait for this one."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 (it is raised in the caller's thread)
                done.set_exception(error)

        Thread(target=run, name="meanwhile", daemon=True).start()
        while not done.done():
            if not self._idle:
                self._turn(asks=True)
            elif self._look is None or not self._look(False):
                wait([done], TICK_S)
            else:
                self._look = None
        return done.result()

    def drain(self) -> None:
        """Runs the running episodes to their end, so that an evaluation has all slots; the others wait until it is
        over."""
        try:
            if self._several is not None:
                self._several.closed = True
                while self._several.running:
                    self._turn()
                self._several.closed = False
            self._rest()
        except BaseException:
            self._abandon()
            raise

    def seconds_of(self, iteration: int) -> float:
        """Returns the seconds since an iteration's first episode began."""
        assert self._several is not None
        now = time.monotonic()
        return now - self._several.began.pop(iteration, now)

    def _collect_planned(
        self, planned: Planned, on_episode: Callable[[EpisodeResult], None], on_share: Callable[[float], None]
    ) -> tuple[list[EpisodeResult], RolloutStats]:  # fmt: skip
        booked, handed = planned.booked, 0

        def hand_over() -> None:
            nonlocal handed
            for result in booked.results[handed:]:
                handed += 1
                on_episode(result)

        def advance() -> None:
            hand_over()
            self._turn()

        run = self._running()
        self._until_ended(booked, advance, on_share)
        hand_over()
        with self._sections("rollout/policy"):
            run.value_final_observations()
        return booked.in_order(planned.plan), self._closed(planned, run)

    def _closed(self, planned: Planned, run: Run) -> RolloutStats:
        """Ends a plan; returns its counts, with calls of the policy and idle time since the end of the plan before."""
        assert self._several is not None
        stats = run.close()
        stats.merge(planned.booked.stats)
        self._traces.end(run.timeline, planned.job)
        self._several.stats = RolloutStats()
        self._several.plans.remove(planned.booked)
        self._planned = tuple(one for one in self._planned if one is not planned)
        if self._several.plans:
            run.goes_on(self._traces.begin(run.num_slots, self._several.plans[0].job))
        else:
            self._rest()
        return stats

    def _running(self) -> Run:
        assert self._several is not None
        if self._flow is None:
            self._flow = self._begin(self._several, self._several.plans[0].job)
        return self._flow

    @property
    def _idle(self) -> bool:
        """True if nothing runs and nothing may begin."""
        return self._several is None or not (self._several.running or self._several.may_start)

    def _turn(self, asks: bool = False) -> None:
        """Lets episodes begin, and takes what envs have done. Where nothing can go on, waits for what may change it.

        Args:
            asks: the caller asks for something between two turns, so that none may take long.
        """
        several, idle = self._several, self._idle
        if self._look is not None and self._look(idle):
            self._look = None
        elif several is not None and not idle:
            run = self._running()
            run.start_episodes()
            self._advance(run, lambda result: None, TICK_S if asks or self._look is not None else math.inf)
        elif self._look is None:
            assert several is not None
            self._check_rows(len(several.pending), several.job)

    def _rest(self, whole: bool = True) -> None:
        if self._flow is not None:
            self._policy.end(whole)
            self._flow = None

    def _abandon(self) -> None:
        """Drops what runs and waits: the rollout has failed, or was stopped."""
        leases = frozenset(self.records.leased)
        for lease in self._several.leases if self._several else ():
            if lease in leases:
                self.records.give_back(lease)
        self._several, self._planned, self._look = None, (), None
        self._rest(whole=False)
