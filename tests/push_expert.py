"""PushCube with an expert: behind the cube, then forward. Worker processes find this module through sys.path."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from embodied.envs.maniskill import ManiSkillEnv

ABOVE = np.array([0, 0, 0.06])


class PushCube(ManiSkillEnv):
    """For ``control_mode: pd_ee_delta_pos``, whose range is 0.1 m a step."""

    def expert(self) -> Iterator[np.ndarray]:
        task, pushing, low = self._sim.env, False, False
        while True:
            cube, goal, hand = (
                thing.pose.p[0].numpy() for thing in (task.obj, task.goal_region, task.agent.tcp)
            )  # fmt: skip
            behind = np.array([cube[0] - 0.08, cube[1], 0.025])
            low = low or np.linalg.norm(behind + ABOVE - hand) < 0.025
            pushing = pushing or (low and np.linalg.norm(behind - hand) < 0.02)
            if pushing and abs(hand[1] - cube[1]) > 0.03:  # slipped off its side
                pushing = low = False
            target = behind + (0 if low else ABOVE)
            if pushing:
                target = np.array([goal[0] - 0.04, cube[1], 0.025])
            yield np.array([*np.clip(15 * (target - hand), -0.6, 0.6), -1.0], np.float32)
