"""The numbers that ManiSkill gives beside its pictures, read from SAPIEN: ``read_state`` of one known task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..state import proprio
from .controllers import Unknown
from .tasks import Task


class Observed:
    """Reads the observation fields that are asked for, and no others. ManiSkill evaluates the task for each
    observation.

    Args:
        env: with a robot and controllers that are known here; none of these has a state of its own.
    """

    def __init__(self, env: Any, task: Task) -> None:
        if env.obs_mode_struct.use_state:
            raise Unknown("observations of the objects' poses")
        robot, self._hand = env.agent.robot._objs[0], env.agent.tcp._objs[0]
        self._fields: dict[str, Callable[[], Any]] = {
            "qpos": lambda: robot.qpos,
            "qvel": lambda: robot.qvel,
            "tcp_pose": self._tcp_pose,
            "proprio": lambda: proprio(self._tcp_pose(), robot.qpos),
            **task.observation_readers(),
        }

    def _tcp_pose(self) -> np.ndarray:
        pose = self._hand.entity_pose
        return np.concatenate([pose.p, pose.q])

    def read(self, fields: Sequence[str]) -> np.ndarray:
        """Joins the given fields of the present state: float32 [1, S]."""
        return np.concatenate([np.atleast_1d(self._fields[name]()) for name in fields])[None].astype(np.float32)
