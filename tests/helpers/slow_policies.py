"""Policies that take as long as large ones, for tests of what happens meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

from embodied.testing import FakePolicy


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
