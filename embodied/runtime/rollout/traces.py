"""Chooses the rollouts that leave a trace (``rollout.trace``), and writes it.

| which | rollouts | spans |
|---|---|---|
| ``all`` | each | all |
| ``eval`` | those of evaluations | all |
| ``first`` | the first of each of two iterations of training, and the first two of evaluations | the first 20,000 |

<run>/trace/000001-train.json  000002-train.json  000003-eval.json

In the first iteration simulators are built, so the second one shows better where time goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from embodied.observe.timeline import Timeline
from embodied.random import Stream
from embodied.runtime.rollout.episodes import Job

FEW = 2
"""Traces of a side that ``first`` leaves in a folder, however often its run is resumed."""

MOST_SPANS = 20_000
"""Spans of such a trace. A span takes at most 125 bytes, so four traces take at most 10 MB (measured: 1.8 MB each)."""


class Traces:
    """Decides which rollouts are traced, and writes their traces.

    Args:
        folder: where they go; None = none is traced.
        say: told what could not be written. A rollout goes on without its trace.
    """

    def __init__(
        self, folder: Path | None = None, which: Literal["all", "eval", "first"] = "all",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self._folder, self._which, self._say = folder, which, say
        self._begun: dict[str, tuple[int, int]] = {}  # side → iteration and weights of the rollout that was begun last

    def begin(self, slots: int, job: Job) -> Timeline:
        """Returns the timeline of a rollout that begins."""
        return Timeline(slots, keep=self._spans(job))

    def _spans(self, job: Job) -> float:
        """Returns the number of spans of a rollout that are kept."""
        side = _side(job)
        if self._folder is None or (self._which == "eval" and side != "eval") or job.iteration < 0:
            return 0
        if self._which != "first":
            return math.inf
        if side == "train" and not job.keep_records:  # greedy episodes, from which nothing is learned
            return 0
        own = job.iteration, job.version
        again = self._begun.get(side) == own  # a refill of the same iteration
        self._begun[side] = own
        return 0 if again or len([*self._folder.glob(f"*-{side}.json")]) >= FEW else MOST_SPANS

    def end(self, timeline: Timeline, job: Job) -> None:
        """Writes the trace of a rollout that has ended, unless none is wanted or it had no episode."""
        if self._folder is None or not timeline.spans:
            return
        number = len([*self._folder.glob("*.json")]) + 1
        try:
            timeline.write(self._folder / f"{number:06d}-{_side(job)}.json")
        except OSError as error:
            self._say(f"the trace of this rollout was not written: {error}")


def _side(job: Job) -> str:
    return "eval" if job.stream == Stream.EVAL_NOISE else "train"
