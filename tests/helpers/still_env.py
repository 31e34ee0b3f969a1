"""Envs that cannot have some perturbations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from embodied.testing import FakeEnv
from embodied.types import ContinuousAction


class StillEnv:
    """The fake env, as one that a user has written without ``move_camera``."""

    def __init__(self, success_distance: float = 0.3) -> None:
        self._env = FakeEnv(success_distance=success_distance)

    def __getattr__(self, name: str) -> Any:
        if name in ("move_camera", "_env"):
            raise AttributeError(name)
        return getattr(self._env, name)


class EndlessEnv(FakeEnv):
    """The fake env with an action whose first number ends at ``most``."""

    def __init__(self, success_distance: float = 0.3, most: float = math.inf) -> None:
        super().__init__(success_distance=success_distance)
        ends = (most, *self._spec.action_high[1:])
        self._spec = replace(self._spec, action=ContinuousAction(tuple(-end for end in ends), ends))
