"""Policies that take as long as large ones, or are stopped, for tests of what happens meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from embodied.testing import FakePolicy, FakeTextPolicy


class Slow(FakePolicy):
    """``act_s`` and ``evaluate_s``: seconds that each call takes at least, as a 7B model's do. None while the file
    ``hurry`` lies in the working directory: runs with the same settings, of which only the numbers matter."""

    def __init__(self, act_s: float = 0.0, evaluate_s: float = 0.0, value_head: bool = False) -> None:
        super().__init__(value_head=value_head)
        self._act_s, self._evaluate_s = act_s, evaluate_s

    def act(self, obs, uniform, sampling):
        _take(self._act_s)
        return super().act(obs, uniform, sampling)

    def evaluate(self, records, sampling, distribution=False):
        _take(self._evaluate_s)
        return super().evaluate(records, sampling, distribution)


def _take(seconds: float) -> None:
    if not Path("hurry").exists():
        time.sleep(seconds)


class StoppedOnce(FakeTextPolicy):
    """The last of two processes gets SIGTERM in the fourth pass of its updates, unless the file ``stopped`` lies in the
    working directory."""

    passes = 0

    def evaluate(self, records, sampling, distribution=False):
        self.passes += 1
        if self.passes == 4 and os.environ["RANK"] == "1" and not Path("stopped").exists():
            Path("stopped").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return super().evaluate(records, sampling, distribution)
