"""Envs whose experts are missing or fail. Worker processes find this module through the launcher's sys.path."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from embodied.errors import AssetsMissingError
from embodied.testing import FakeEnv


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


class Dies(FakeEnv):
    """The process of the third start ends."""

    def expert(self) -> Iterator[np.ndarray]:
        if self._start.seed == 2:
            os._exit(7)
        return super().expert()


class Raises(FakeEnv):
    def expert(self) -> Iterator[np.ndarray]:
        raise RuntimeError("this expert knows nothing")


class NotThisTask(FakeEnv):
    def expert(self) -> Iterator[np.ndarray]:
        raise AssetsMissingError("no expert for this task", "choose another task")
