"""Envs whose experts are missing or fail. Worker processes find this module through the launcher's sys.path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from broken_envs import first_to_make

from embodied.errors import AssetsMissingError
from embodied.testing import FakeEnv
from embodied.types import StepResult


class NoExpert(FakeEnv):
    expert = None  # type: ignore[assignment]


class ExpertElsewhere(NoExpert):
    experts = "PickFake and PushFake"


class Moody(FakeEnv):
    """Gives up at once on odd initial states, and is slower the lower their number is."""

    def expert(self) -> Iterator[np.ndarray]:
        if self._start.init_state_id % 2 == 0:
            for action in super().expert():
                self._step_s, self._pace = 1, 0.002 * (4 - self._start.init_state_id)
                yield action


class CutsOff(FakeEnv):
    """Each control step cuts the episode off; the expert does not care."""

    def step(self, action: np.ndarray) -> StepResult:
        return super().step(action)._replace(truncated=True)


class Spoils(FakeEnv):
    """The third control step fails for good."""

    def step(self, action: np.ndarray) -> StepResult:
        return super().step(action)._replace(terminated=self._steps == 3, success=False)


class Dies(FakeEnv):
    """The process of the third start ends."""

    def expert(self) -> Iterator[np.ndarray]:
        if self._start.seed == 2:
            os._exit(7)
        return super().expert()


class FailsOnce(FakeEnv):
    """The first worker of all that comes to the third control step of the start with seed 2 fails as it is told to.

    Args:
        marker: path of a file that says so to the workers after it.
        how: exit, raise or hang.
    """

    def __init__(self, marker: str, how: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._marker, self._how = marker, how

    def expert(self) -> Iterator[np.ndarray]:
        for number, action in enumerate(super().expert()):
            if number == 2 and self._start.seed == 2 and first_to_make(self._marker):
                if self._how == "exit":
                    os._exit(7)
                if self._how == "raise":
                    raise RuntimeError("this expert failed once")
                time.sleep(3600)
            yield action


class GivesUp(FakeEnv):
    """After as many control steps as the start's seed says."""

    def expert(self) -> Iterator[np.ndarray]:
        yield from islice(super().expert(), self._start.seed)


class Raises(FakeEnv):
    def expert(self) -> Iterator[np.ndarray]:
        raise RuntimeError("this expert knows nothing")


class Careless(FakeEnv):
    """Its expert's mistake is to go to the left: three control steps, or on and on from odd initial states."""

    def mistaken_expert(self) -> Iterator[np.ndarray]:
        left = np.zeros_like(next(self.expert()))
        left[0] = -1.0
        while self._steps < 3 or self._start.init_state_id % 2:
            yield left


class NotThisTask(FakeEnv):
    def expert(self) -> Iterator[np.ndarray]:
        raise AssetsMissingError("no expert for this task", "choose another task")
