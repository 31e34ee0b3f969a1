"""A discrete-event model of the rollout: what a schedule could give if nothing but simulators and policy took time.

    python benchmarks/pipeline_model.py

The rule that decides when the policy runs is the runtime's own (``embodied.runtime.schedule.Schedule``), and so is the
order of things: wait, see who is due, start episodes, answer. Workers serve their slots one after another, the policy
answers all due slots in one call. Durations are functions of the episode and
step alone, so the model and a real run (benchmarks/scheduler.py) can be given the same ones.

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

from embodied.runtime.schedule import Schedule


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
    now, pending, idle = 0.0, deque(episodes), deque(range(slots))
    running: dict[int, Length] = {}
    records = dict.fromkeys(range(slots), 0)
    free_at, flying = [0.0] * workers, []  # type: ignore[var-annotated]
    working: set[int] = set()
    ready: dict[int, float] = {}
    made = calls = 0

    def send(slot: int, seconds: float) -> None:
        worker = slot % workers
        free_at[worker] = max(free_at[worker], now) + seconds
        heapq.heappush(flying, (free_at[worker], slot))
        working.add(slot)

    def due() -> list[int]:
        return schedule.due([*ready], working, waited(), slots)

    def waited() -> float:
        return now - next(iter(ready.values())) if ready else 0.0

    def start() -> None:
        if auto_reset or not running:
            while idle and pending:
                slot = idle.popleft()
                running[slot], records[slot] = pending.popleft(), 0
                send(slot, running[slot].reset_s)

    start()
    while pending or running:
        if not due():  # else whatever has been done by now
            wanted = max(1, schedule.missing([*ready], working, slots))
            done = heapq.nsmallest(wanted, flying)[-1][0]
            now = max(now, min(done, now + (schedule.patience([*ready], waited()) or float("inf"))))
        while flying and flying[0][0] <= now:
            at, slot = heapq.heappop(flying)
            working.discard(slot)
            if records[slot] >= running[slot].records:
                del running[slot]
                idle.append(slot)
            else:
                ready[slot] = at
        answered = due()
        start()
        if answered:
            calls += 1
            now += policy_s(len(answered))
        for slot in answered:
            del ready[slot]
            steps = running[slot].steps_s
            send(slot, float(steps[records[slot] % len(steps)]))
            records[slot] += 1
            made += 1
    return Outcome(now, made, calls)


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
    "lockstep": Schedule(lockstep=True, min_batch=1, policy_batch=10**6, fixed_shape=False),
    "2-stage": Schedule(lockstep=True, min_batch=1, policy_batch=10**6, fixed_shape=False, stages=2),
}


def schedules(slots: int) -> dict[str, Schedule]:
    """Those that are compared; ``ready`` has the default floor of an eighth."""
    ready = Schedule(lockstep=False, min_batch=max(1, slots // 8), policy_batch=10**6, fixed_shape=False)
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
