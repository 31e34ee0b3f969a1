"""A policy whose runs show that rollouts and updates run at the same time, in each of several processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from slow_policies import Slow

from embodied.learn.trainer import Trainer
from embodied.run.training.collector import Collector

PATIENCE_S = 60.0  # of a thread for the other; without an overlap it is in vain
RANK = os.environ.get("RANK", "0")
_decided: list[threading.Event] = []  # by rollout
_updates: list[threading.Event] = []


class Meets(Slow):
    """Rollout i + 1 waits for the beginning of update i, and update i for a decision of that rollout, for as many
    updates as the file ``meet`` in the working directory says. ``met-RANK`` gets a letter for each wait: y, or n after
    a minute. ``fails``: number of the pass that raises in rank 1."""

    def __init__(self, fails: int | None = None, **times: float) -> None:
        super().__init__(**times)
        self._fails, self._passes = fails, 0
        if (file := Path("meet")).exists():
            _watch(int(file.read_text(encoding="utf-8")))

    def act(self, obs, uniform, sampling):
        if _decided:
            _decided[-1].set()
        return super().act(obs, uniform, sampling)

    def evaluate(self, records, sampling, distribution=False):
        self._passes += 1
        if self._passes == self._fails and RANK == "1":
            raise RuntimeError("the policy was told to fail in a pass")
        return super().evaluate(records, sampling, distribution)


def _watch(count: int) -> None:
    collect, update = Collector.collect, Trainer.update
    rollouts = [threading.Event() for _ in range(count + 1)]
    _updates.extend(threading.Event() for _ in range(count))

    def collect_met(self: Collector, iteration: int, *given: Any) -> Any:
        if 0 < iteration <= count:
            _note(_updates[iteration - 1].wait(PATIENCE_S))
        if iteration <= count:
            _decided.append(rollouts[iteration])
        return collect(self, iteration, *given)

    def update_met(self: Trainer, arrays: Any, results: Any, iteration: int, *given: Any) -> Any:
        if iteration < count:
            _updates[iteration].set()
            _note(rollouts[iteration + 1].wait(PATIENCE_S))
        return update(self, arrays, results, iteration, *given)

    Collector.collect, Trainer.update = collect_met, update_met  # type: ignore[method-assign]


def _note(met: bool) -> None:
    with Path(f"met-{RANK}").open("a", encoding="utf-8") as file:
        file.write("y" if met else "n")
