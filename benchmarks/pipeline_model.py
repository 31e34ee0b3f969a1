"""A discrete-event model of the rollout: what a schedule could give if nothing but simulators and policy took time.

    python benchmarks/pipeline_model.py

The rule that decides when the policy runs is the runtime's own (``embodied.runtime.rollout.schedule.Schedule``), and so
is the order of things: wait, see who is due, start episodes, answer. Workers serve their slots one after another, the
policy answers all due slots in one call. Durations are functions of the episode and step alone, so the model and a real
run (benchmarks/scheduler.py) can be given the same ones.

Closed forms for constant durations, N slots on C workers, a chunk of ``te`` seconds, T_e = N·te/C, T_p(b) = seconds of
a policy call of b rows: lockstep makes N / (T_e + T_p(N)) records a second, two stages at most
N / max(T_e, 2·T_p(N/2)).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embodied.runtime.rollout.schedule import Schedule


@dataclass(frozen=True)
class Length:
    """The durations of one episode, seconds."""

    reset_s: float
    steps_s: np.ndarray  # used in turn
    records: int


@dataclass(frozen=True)
class Outcome:
    seconds: float
    records: int
    policy_calls: int

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


def policy_time(whole_s: float, slots: int, fixed_share: float) -> Callable[[int], float]:
    """T_p(b) that is ``whole_s`` at b = ``slots`` and has a part that does not depend on b."""
    return lambda rows: whole_s * (fixed_share + (1 - fixed_share) * rows / slots)


def simulate(
    episodes: Sequence[Length], slots: int, workers: int, schedule: Schedule, policy_s: Callable[[int], float],
    auto_reset: bool = True,
) -> Outcome:  # fmt: skip
    """Run ``episodes`` on ``slots`` (slot i lives on worker i mod ``workers``).

    Args:
        policy_s: seconds of a policy call by its rows.
        auto_reset: a slot takes the next episode at once; otherwise when all have ended theirs.
    """
    return _Run(episodes, slots, workers, schedule, policy_s, auto_reset).outcome()


class _Run:
    """The rollout's state (``embodied.runtime.rollout.rollout``) with a clock instead of processes."""

    def __init__(
        self, episodes: Sequence[Length], slots: int, workers: int, schedule: Schedule,
        policy_s: Callable[[int], float], auto_reset: bool,
    ) -> None:  # fmt: skip
        self._schedule, self._policy_s, self._auto_reset, self._slots = schedule, policy_s, auto_reset, slots
        self._now, self._pending, self._idle = 0.0, deque(episodes), deque(range(slots))
        self._running: dict[int, Length] = {}
        self._records: dict[int, int] = {}  # of a slot's episode so far
        self._free_at = [0.0] * workers
        self._flying: list[tuple[float, int]] = []  # heap of when which slot will be done
        self._ready: dict[int, float] = {}

    def outcome(self) -> Outcome:
        made = calls = 0
        self._start()
        while self._pending or self._running:
            if not self._due():  # else whatever has been done by now
                self._wait()
            self._take()
            due = self._due()
            self._start()
            if due:
                calls, made = calls + 1, made + len(due)
                self._answer(due)
        return Outcome(self._now, made, calls)

    @property
    def _working(self) -> set[int]:
        return {slot for _, slot in self._flying}

    @property
    def _waited(self) -> float:
        return self._now - next(iter(self._ready.values())) if self._ready else 0.0

    def _due(self) -> list[int]:
        return self._schedule.due([*self._ready], self._working, self._waited, self._slots)

    def _start(self) -> None:
        if self._running and not self._auto_reset:
            return
        while self._idle and self._pending:
            slot = self._idle.popleft()
            self._running[slot], self._records[slot] = self._pending.popleft(), 0
            self._send(slot, self._running[slot].reset_s)

    def _send(self, slot: int, seconds: float) -> None:
        worker = slot % len(self._free_at)
        self._free_at[worker] = max(self._free_at[worker], self._now) + seconds
        heapq.heappush(self._flying, (self._free_at[worker], slot))

    def _wait(self) -> None:
        wanted = max(1, self._schedule.missing([*self._ready], self._working, self._slots))
        done, _ = heapq.nsmallest(wanted, self._flying)[-1]
        patience = self._schedule.patience([*self._ready], self._waited)
        self._now = max(self._now, done if patience is None else min(done, self._now + patience))

    def _take(self) -> None:
        while self._flying and self._flying[0][0] <= self._now:
            at, slot = heapq.heappop(self._flying)
            if self._records[slot] < self._running[slot].records:
                self._ready[slot] = at
            else:
                del self._running[slot]
                self._idle.append(slot)

    def _answer(self, due: Sequence[int]) -> None:
        self._now += self._policy_s(len(due))
        for slot in due:
            del self._ready[slot]
            steps = self._running[slot].steps_s
            self._send(slot, float(steps[self._records[slot] % len(steps)]))
            self._records[slot] += 1


def lockstep_rate(slots: int, workers: int, te: float, policy_s: Callable[[int], float]) -> float:
    """Records a second of a lockstep with constant durations."""
    return slots / (slots * te / workers + policy_s(slots))


def two_stage_rate(slots: int, workers: int, te: float, policy_s: Callable[[int], float]) -> float:
    """Upper bound of the records a second of two stages with constant durations."""
    return slots / max(slots * te / workers, 2 * policy_s(slots // 2))


def ready_rate(slots: int, workers: int, te: float, policy_s: Callable[[int], float]) -> float:
    """Upper bound for any schedule: neither the workers nor the policy ever wait."""
    return min(workers / te, slots / policy_s(slots))


SCHEDULES = {
    "lockstep": Schedule(lockstep=True, min_batch=1),
    "2-stage": Schedule(lockstep=True, min_batch=1, stages=2),
}


def schedules(slots: int) -> dict[str, Schedule]:
    """Those that are compared; ``ready`` has the default floor of an eighth."""
    ready = Schedule(lockstep=False, min_batch=max(1, slots // 8))
    return {**SCHEDULES, "ready": ready}


def lengths(
    count: int, records: int, te: float, sigma: float, reset_s: tuple[float, float] = (0.0, 0.0)
) -> list[Length]:
    """Episodes of half to one and a half times ``records`` chunks of log-normal duration with mean ``te``."""
    found = []
    for seed in range(count):
        random = np.random.default_rng([seed, 77])
        reset = float(random.uniform(*reset_s))
        number = int(random.integers(records // 2, records + records // 2 + 1))
        found.append(Length(reset, te * random.lognormal(-(sigma**2) / 2, sigma, 1024), number))
    return found


def main() -> None:
    slots, workers, te = 64, 16, 0.2
    for title, resets in (("no resets", (0.0, 0.0)), ("resets of 0.5 to 3 s every 40 chunks or so", (0.5, 3.0))):
        print(f"{title}: records a second (over lockstep), {slots} slots, {workers} workers, chunk {te} s")
        for r in (0.25, 0.5, 1.0, 2.0, 4.0):
            policy_s = policy_time(r * slots * te / workers, slots, 0.2)
            found = {
                name: simulate(lengths(3 * slots, 40, te, 0.4, resets), slots, workers, rule, policy_s).records_per_s
                for name, rule in schedules(slots).items()
            }
            shown = "  ".join(f"{name} {rate:5.1f} ({rate / found['lockstep']:.2f})" for name, rate in found.items())
            print(f"  policy/env {r:<4g} {shown}")


if __name__ == "__main__":
    main()
