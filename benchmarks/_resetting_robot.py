"""A simulated robot whose resets take time: the point of the fake env, at 20 Hz."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from embodied.testing import FakeEnv
from embodied.types import Start, StepResult


class ResettingRobot(FakeEnv):
    """Moves at its control rate.

    Args:
        reset_s: seconds of a reset.
    """

    def __init__(self, reset_s: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._spec = replace(self._spec, retry_safe=False, repeatable=False, restorable=False)
        self._reset_s, self._due = reset_s, 0.0

    def reset(self, start: Start) -> None:
        super().reset(start)
        time.sleep(self._reset_s)
        self._due = time.monotonic()

    def step(self, action: np.ndarray) -> StepResult:
        self._due = max(self._due + 1 / self._spec.control_hz, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        return super().step(action)

    def safe_stop(self) -> None:
        """Does nothing: a simulated robot stands when its process does."""
