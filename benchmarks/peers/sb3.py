"""Stable-Baselines3: SubprocVecEnv."""

from __future__ import annotations

from typing import Any

import numpy as np
from _ways import GymEnv
from stable_baselines3.common.vec_env import SubprocVecEnv


class SubprocWay:
    """One process an env, whatever ``workers`` says."""

    rest_s = 0.0

    def __init__(self, env: dict[str, Any], envs: int, workers: int, steps: int, chunk: int) -> None:
        self._vector = SubprocVecEnv([lambda: GymEnv(env, chunk)] * envs, start_method="fork")
        self._vector.reset()
        self._steps = steps
        self._actions = np.zeros((envs, *self._vector.action_space.shape), np.float32)

    def round(self) -> int:
        for _ in range(self._steps):
            self._vector.step(self._actions)
        return len(self._actions)

    def pids(self) -> list[int]:
        return [process.pid for process in self._vector.processes]

    def close(self) -> None:
        self._vector.close()
