"""Meta-World 3 (github.com/Farama-Foundation/Metaworld): its tasks with starts that a seed draws, and their experts.

Meta-World's own envs ignore ``reset(seed=…)``. :func:`make` gives one that draws where things stand from that seed, out
of the ranges that the benchmarks (ML10, MT10 …) draw their fifty starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from embodied.errors import ConfigError, unknown_name

CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")


def make(
    task: str, goal_in_observation: bool = True, camera_name: str = "corner2", width: int = 64, height: int = 64,
    max_steps: int = 500, shadow_size: int = 1024, render_mode: str | None = None,
) -> gymnasium.Env:  # fmt: skip
    """Makes a task's env.

    Observation [39]: of now and of one step before: hand (m, 3), gripper (1), objects (14); then the goal (m, 3).

    Args:
        task: e.g. "reach-v3".
        goal_in_observation: False: its last three numbers are zero, as in the ML benchmarks.
        camera_name, width, height: of the rendered picture, pixels.
        max_steps: after so many an episode is truncated; Meta-World's own limit is 500.
        shadow_size: pixels of a shadow's map; Meta-World's 4096 is most of the time of a small picture.

    Raises:
        UnknownNameError: there is no such task or camera.
        ConfigError: a size or the limit of steps.
    """
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    if task not in ALL_V3_ENVIRONMENTS:
        raise unknown_name("Meta-World task", task, ALL_V3_ENVIRONMENTS, "env.train.make_kwargs.task")
    if camera_name not in CAMERAS:
        raise unknown_name("Meta-World camera", camera_name, CAMERAS, "env.train.make_kwargs.camera_name")
    if not 1 <= max_steps <= 500:
        raise ConfigError(f"env.train.make_kwargs.max_steps is {max_steps}, expected 1 to 500", "set it to 500 or less")
    env = ALL_V3_ENVIRONMENTS[task](render_mode=render_mode, camera_name=camera_name, width=width, height=height)
    env.model.vis.quality.shadowsize = shadow_size
    env._partially_observable = not goal_in_observation
    env.__dict__.pop("sawyer_observation_space", None)  # it was worked out for a hidden goal
    env.observation_space = env.sawyer_observation_space
    env._set_task_called, env._freeze_rand_vec, env.seeded_rand_vec = True, False, True
    return gymnasium.wrappers.TimeLimit(Seeded(env, task), max_steps)


class Seeded(gymnasium.Wrapper):
    """Gymnasium wrapper that draws a Meta-World task's start from the seed of a reset."""

    def __init__(self, env: gymnasium.Env, task: str) -> None:
        super().__init__(env)
        self.task = task

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.unwrapped.seed(seed)  # type: ignore[attr-defined]
        found = self.env.reset(options=dict(options or {}))
        task: Any = self.unwrapped
        for name, position in task._target_site_config:  # else pictures show the goal of a draw before, until a step
            task._set_pos_site(name, position)
        return found


class Expert:
    """Meta-World's own scripted policy of the task. It knows the goal, also where observations do not have it."""

    def __init__(self, env: gymnasium.Env) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        self._env: Any = env
        while not isinstance(env, Seeded):
            env = env.env  # type: ignore[attr-defined]
        self._policy = ENV_POLICY_MAP[env.task]()

    def get_action(self, obs: np.ndarray) -> np.ndarray:
        known = np.array(obs, np.float64)
        known[-3:] = self._env.unwrapped._get_pos_goal()
        return np.clip(self._policy.get_action(known), -1.0, 1.0)
