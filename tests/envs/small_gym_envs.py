"""Gymnasium envs of the tests, in the forms that envs of others come in. Importing this registers ``tests/Seen-v0``."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from embodied.errors import ConfigError


class Seen(gymnasium.Env):
    """A dot on a line goes to a mark. The observation is nested: a picture, numbers, a sentence, a signed number."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(
        self, far: float = 0.2, discrete: bool = False, side: int = 12, render_mode: str | None = None
    ) -> None:
        self.far, self.render_mode, self._side = far, render_mode, side
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "top": box(0, 255, (side, side, 3), np.uint8),
                "arm": gymnasium.spaces.Dict({"place": box(-1, 1, (2,)), "mark": box(-1, 1, (1,))}),
                "mission": gymnasium.spaces.Text(64),
            }
        )
        low, high = np.array([[-2, -1]], np.float32), np.array([[2, 1]], np.float32)
        self.action_space = gymnasium.spaces.Discrete(3, start=-1) if discrete else box(low, high)
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.mark = np.zeros(2), self.np_random.uniform(0.3, 0.9)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.got.append(action)
        move = float(np.reshape(action, -1)[0])
        self.place = np.clip(self.place + np.array([0.1 * move, self.np_random.normal()]), -1, 1)
        gap = abs(self.mark - self.place[0])
        return (
            self._obs(),
            -gap,
            bool(self.place[0] < -0.9),
            False,
            {"gap": gap, "solved": gap < self.far, "note": "hm"},
        )

    def _obs(self) -> dict[str, Any]:
        arm = {"place": self.place.astype(np.float32), "mark": np.array([self.mark], np.float32)}
        return {"top": self._drawn(self._side), "arm": arm, "mission": f"go to {self.mark:.2f}"}

    def _drawn(self, side: int) -> np.ndarray:
        picture = np.zeros((side, side, 3), np.uint8)
        picture[0, :, 0] = int(100 + 100 * self.place[0])
        picture[-1, :, 1] = int(200 * self.mark)
        return picture

    def render(self) -> np.ndarray:
        return self._drawn(2 * self._side)


class Leaves(Seen):
    """Each reset leaves the place where it was."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        before = getattr(self, "place", np.zeros(2))
        super().reset(seed=seed)
        self.place = before
        return self._obs(), {}


class Push(gymnasium.ActionWrapper):
    """Adds to each action."""

    def __init__(self, env: gymnasium.Env, by: float) -> None:
        super().__init__(env)
        self._by = by

    def action(self, action: Any) -> Any:
        return action + np.float32(self._by)


def towards(obs: Any) -> np.ndarray:
    """A scripted policy: a function of the observation."""
    gap = float(obs["arm"]["mark"][0] - obs["arm"]["place"][0])
    return np.array([[np.clip(10 * gap, -2, 2), 0]], np.float32)


class Towards:
    """A scripted policy of discrete actions, which asks the env."""

    def __init__(self, env: gymnasium.Env) -> None:
        self._env = env.unwrapped

    def get_action(self, obs: Any) -> int:
        return 1 if self._env.mark > self._env.place[0] else -1  # type: ignore[attr-defined]


def nonsense(obs: Any) -> str:
    """No policy."""
    return "left"


class Together(SyncVectorEnv):
    """A vector env that leaves its resets to others. Faults: ``reuses`` its arrays (which is allowed), takes
    ``one seed``, ``no mask``, ``no options``, ``counts on`` from the first copy's seed, ``mixes`` what copies draw."""

    def __init__(
        self, num_envs: int, max_episode_steps: int = 30, fault: str = "", autoreset_mode: str = "Disabled",
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self.fault, self.max_episode_steps = fault, max_episode_steps
        one = lambda: gymnasium.wrappers.TimeLimit(Seen(**kwargs), max_episode_steps)  # noqa: E731
        super().__init__([one] * num_envs, copy=fault != "reuses", autoreset_mode=autoreset_mode)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.fault == "one seed" and not isinstance(seed, int):
            raise gymnasium.error.Error(f"Seed must be a python integer, actual type: {type(seed)}")
        if self.fault == "no mask":
            options = None
        elif self.fault == "no options" and options:
            raise TypeError("options are not understood")
        elif self.fault == "counts on" and seed:
            seed = [seed[0] + number for number in range(self.num_envs)]
        elif self.fault == "mixes" and options:
            for env in self.envs:
                env.unwrapped.np_random = np.random.default_rng(0)
        return super().reset(seed=seed, options=options)


class Slower(gymnasium.vector.VectorActionWrapper):
    """A vector wrapper: actions count by half."""

    def actions(self, actions: Any) -> Any:
        return np.asarray(actions) / 2


def no_vector_env(num_envs: int) -> gymnasium.Env:
    """Makes something else."""
    return Seen()


class Dies(Seen):
    """Ends its process in the sixth step of an episode, or ``fails`` or ``sleeps`` in it."""

    def __init__(self, fault: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.got.clear()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if len(self.got) == 5:
            if self._fault == "fails":
                raise ConfigError("the sixth step fails", "take five")
            if self._fault == "sleeps":
                time.sleep(60)
            os._exit(3)
        return super().step(action)


class Walk(gymnasium.Env):
    """Each step pays 1. The observation says how many there were, in tenths, and whether the fifth one falls, which
    ends the task: half of the seeds do. Nothing else ends it, so that a limit does."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.falls = 0, bool(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._obs(), 1.0, self.falls and self.steps == 5, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.steps / 10, self.falls], np.float32)


def walks(num_envs: int, max_episode_steps: int, **kwargs: Any) -> SyncVectorEnv:
    """A vector env of walks that leaves its resets to others."""
    one = lambda: gymnasium.wrappers.TimeLimit(Walk(), max_episode_steps)  # noqa: E731
    return SyncVectorEnv([one] * num_envs, autoreset_mode="Disabled")


if "tests/Walk-v0" not in gymnasium.registry:
    gymnasium.register("tests/Walk-v0", entry_point=Walk, max_episode_steps=6)
if "tests/Seen-v0" not in gymnasium.registry:
    gymnasium.register("tests/Seen-v0", entry_point=Seen, max_episode_steps=30, vector_entry_point=Together)


class Helped(gymnasium.Wrapper):
    """A human who moves the dot in place of every second action.

    Args:
        done: what ``info`` says that he did; None = nothing.
        flag: what it says of whether he did.
    """

    def __init__(self, env: gymnasium.Env, done: Any = None, flag: Any = True) -> None:
        super().__init__(env)
        self._done, self._flag, self._steps = done, flag, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._steps % 2 == 0:
            info |= {"intervention": self._flag, **({} if self._done is None else {"executed_action": self._done})}
        return obs, reward, terminated, truncated, info
