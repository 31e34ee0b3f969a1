"""The smallest env: a dot walks to a corner of a square. Copy it, change it, name it in a YAML file of ``config/env/``
(``_target_: embodied.envs.my_env.MyEnv``); ``embodied.testing.check_env`` drives it and says what does not fit."""

import os

import numpy as np

from embodied.errors import ConfigError
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Obs, Start, StepResult, WorkerFacts


class TemplateEnv:
    """Template of a new env, to be copied. Keyword arguments are keys under ``env.train`` and ``env.eval``.
    Constructing is cheap, imports no simulator."""

    def __init__(self, size: int = 32) -> None:
        if size < 8:
            raise ConfigError(f"env.train.size is {size}, expected 8 or more", "set env.train.size=8")
        self._size, self._corners = size, np.array([[-0.9, -0.9], [0.9, 0.9]])
        self.spec = EnvSpec(
            obs={"images": ArraySpec((1, size, size, 3), "uint8"), "state": ArraySpec((2,), "float32")},
            cameras=("top",),
            action=ContinuousAction(low=(-1.0,) * 2, high=(1.0,) * 2),  # in the units of step(); or DiscreteAction(N)
            tasks=("go to the upper left corner", "go to the lower right corner"),
            num_init_states=(5, 5),  # of each task
            max_episode_steps=40,
            control_hz=10.0,
        )

    def preflight(self) -> None: ...  # once in the launcher: check what workers will need; change nothing

    def prepare(self) -> WorkerFacts:  # once in the worker: choose the renderer, import the simulator
        return WorkerFacts(os.getpid(), renderer="numpy", reason="draws a dot")

    def reset(self, start: Start) -> None:  # no trace of earlier episodes; all randomness comes from the start
        drawn = np.random.default_rng((start.init_state_id, start.seed))
        self._task_id, self._dot = start.task_id, drawn.uniform(-0.3, 0.3, 2)

    def step(self, action: np.ndarray) -> StepResult:  # one control step, action float32 [A]; renders nothing
        self._dot = np.clip(self._dot + 0.1 * np.clip(action, -1, 1), -1, 1)
        far = float(np.abs(self._dot - self._corners[self._task_id]).max())
        return StepResult(1.0 - far / 2, terminated=far < 0.1, success=far < 0.1)  # reward: progress in [0, 1]

    def observe(self, out: Obs) -> None:  # write every field of spec.obs in place
        out["images"][0], out["state"][:] = self.frame(), self._dot

    def frame(self) -> np.ndarray:  # uint8 [H, W, 3], for videos
        picture = np.full((self._size, self._size, 3), 255, np.uint8)
        x, y = ((self._dot + 1) / 2 * (self._size - 4)).astype(int)
        picture[y : y + 4, x : x + 4] = (200, 30, 30)
        return picture

    def get_state(self) -> tuple[int, np.ndarray]:  # all to go on exactly; none with EnvSpec(restorable=False)
        return self._task_id, self._dot.copy()

    def set_state(self, state: tuple[int, np.ndarray]) -> None:
        self._task_id, self._dot = state[0], state[1].copy()

    def close(self) -> None: ...  # optional beside these: Expert, Preloads and Batched of embodied.protocols
