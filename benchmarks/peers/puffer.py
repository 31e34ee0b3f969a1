"""PufferLib 3: vector.Multiprocessing."""

from __future__ import annotations

import tempfile
from contextlib import chdir
from typing import Any

import gymnasium
import numpy as np
from _ways import Answers, GymEnv

with tempfile.TemporaryDirectory() as folder, chdir(folder):  # importing it leaves a link where it is imported
    import pufferlib
    import pufferlib.emulation
    import pufferlib.vector


class NativeEnv(pufferlib.PufferEnv):
    """The env with PufferLib's own interface: all fields in one array of bytes, drawn where the peer reads them."""

    def __init__(self, env: dict[str, Any], chunk: int, buf: Any = None, seed: int = 0) -> None:
        self._answers = Answers(env, chunk)
        size = sum(spec.nbytes for spec in self._answers.obs.values())
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (size,), np.uint8)
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (self._answers.num_actions,), np.float32)
        self.num_agents = 1
        super().__init__(buf)
        self._out, start = {}, 0
        for name, spec in self._answers.obs.items():
            part = self.observations[0, start : start + spec.nbytes]
            self._out[name] = part.view(spec.dtype).reshape(spec.shape)
            start += spec.nbytes

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, list]:
        self._answers.reset(seed or 0)
        self._answers.observe(self._out)
        return self.observations, []

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list]:
        self.rewards[0] = self._answers.step(actions[0])
        self._answers.observe(self._out)
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        pass


def emulated(env: dict[str, Any], chunk: int, buf: Any = None, seed: int = 0) -> pufferlib.emulation.GymnasiumPufferEnv:
    return pufferlib.emulation.GymnasiumPufferEnv(GymEnv(env, chunk), buf=buf, seed=seed)


class PufferWay:
    rest_s = 0.7  # its workers busy-wait for half a second after the last step, then look every 10 ms

    def __init__(
        self, env: dict[str, Any], envs: int, workers: int, steps: int, chunk: int, native: bool = False
    ) -> None:
        self._vector = pufferlib.vector.make(
            NativeEnv if native else emulated, env_kwargs={"env": env, "chunk": chunk}, num_envs=envs,
            num_workers=workers, backend=pufferlib.vector.Multiprocessing, overwork=True,
        )  # fmt: skip
        self._vector.reset(seed=0)
        self._envs, self._steps = envs, steps
        self._actions = np.zeros(self._vector.action_space.shape, np.float32)

    def round(self) -> int:
        for _ in range(self._steps):
            self._vector.step(self._actions)
        return self._envs

    def pids(self) -> list[int]:
        return [process.pid for process in self._vector.processes]

    def close(self) -> None:
        self._vector.close()
