"""How a run goes: an estimate of what is left of it, updates that got too little of the CPU or were left out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from time import monotonic

STARVED = 3.0  # wall time over CPU time of an update from which on others are said to take the cores
SHORT_S = 5.0  # shorter updates are never called starved


class Pace:
    """Estimates how long the rest of a run takes: its iterations and its evaluations, each as long as those so far.

    The first iteration of a process warms up: once there are others, they alone count. As long as no evaluation has
    been run, one is taken to need all of its control steps, at the speed of the rollouts.

    Args:
        iteration: iterations that were done before this process went on.
        last: iterations of the whole run.
        interval: iterations from one evaluation to the next; −1 = there are none.
        eval_steps: most control steps of an evaluation.
    """

    def __init__(self, iteration: int, last: int, interval: int = -1, eval_steps: int = 0) -> None:
        self._first, self._last, self._began = iteration, last, monotonic()
        self._interval, self._eval_steps = interval, eval_steps
        self._evaluations, self._evaluated_s = 0, 0.0
        self._warming_s: float | None = None  # seconds of the first iteration

    def evaluated(self, seconds: float) -> None:
        """Takes the seconds of an evaluation."""
        self._evaluations += 1
        self._evaluated_s += seconds

    def left_s(self, iteration: int, env_steps_per_s: float = 0.0) -> float:
        """Returns the seconds until the last iteration is done, when ``iteration`` have been; 0 if nobody knows.

        Args:
            env_steps_per_s: speed of the last rollout; 0 if it is not known.
        """
        made, taken_s = iteration - self._first, monotonic() - self._began - self._evaluated_s
        if made == 0:
            return 0.0
        if made == 1:
            self._warming_s = taken_s
        elif self._warming_s is not None:
            made, taken_s = made - 1, taken_s - self._warming_s
        each_s = taken_s / made * (self._last - iteration)
        return each_s + times_due(iteration, self._last, self._interval) * self._evaluation_s(env_steps_per_s)

    def _evaluation_s(self, env_steps_per_s: float) -> float:
        if self._evaluations:
            return self._evaluated_s / self._evaluations
        return self._eval_steps / env_steps_per_s if env_steps_per_s > 0 else 0.0


def times_due(iteration: int, last: int, interval: int) -> int:
    """Returns how often something of every ``interval`` iterations (−1 = never), and of the last one, is still due
    after ``iteration`` of them.

    >>> times_due(0, 10, 4), times_due(8, 10, 4), times_due(10, 10, 4), times_due(0, 10, -1)
    (3, 1, 0, 0)
    """
    if interval <= 0 or iteration >= last:
        return 0
    return last // interval - iteration // interval + (last % interval != 0)


def starved(wall_s: float, cpu_s: float) -> str:
    """Returns a line about an update on a CPU that took ``wall_s`` seconds and too little CPU time, ``cpu_s``; empty
    if it got enough."""
    if wall_s < SHORT_S or wall_s <= STARVED * cpu_s:
        return ""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return (
        f"  the update took {wall_s:.0f} s, and this process got {cpu_s:.0f} s of CPU time in them: other processes "
        f"take the cores (load {load:.1f} on {cores}), or it waits for a disk"
    )


def skipped_updates(metrics: Mapping[str, float]) -> str:
    """Returns a line about updates of an iteration that were left out, and why; empty if there were none."""
    bad = metrics.get("train/bad_updates") or metrics.get("sft/bad_updates")
    if not bad:
        return ""
    cause = "log-ratios of new to old" if metrics.get("train/bad_ratios") else "loss or gradient"
    return (
        f"  {bad:.0f} updates of this iteration were left out: {cause} not finite (runner.max_bad_updates in a row end "
        "the run)"
    )
