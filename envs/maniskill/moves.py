"""Moves cameras for an episode. Only for the worker: imports SAPIEN when it is used."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shared.rotations import quaternion_of


class MovedCameras:
    """Moves cameras of a simulator with one copy for an episode, and puts them back."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, np.ndarray, np.ndarray]] = []  # moves since the cameras stood where they belong
        self._poses: list[tuple[Any, Any]] = []  # each camera that was moved, and its pose before

    def move(self, env: Any, name: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        """Moves a camera by a translation (m) and a rotation vector (rad) in its own frame: x to its right, y upwards,
        it looks along −z."""
        from sapien import Pose

        camera = env.scene.sensors[name].camera
        before = camera._render_cameras[0].local_pose
        self._poses.append((camera, before))
        camera.set_local_pose(before * Pose(_in_sapien(translation), quaternion_of(_in_sapien(rotation))))
        self.moves.append((name, np.array(translation), np.array(rotation)))

    def put_back(self) -> None:
        """Puts all moved cameras back."""
        for camera, pose in reversed(self._poses):
            camera.set_local_pose(pose)
        self.moves, self._poses = [], []


def _in_sapien(vector: np.ndarray) -> np.ndarray:
    """A vector in the frame of SAPIEN's cameras, which look along x, with y to their left."""
    return np.array([-vector[2], -vector[0], vector[1]], np.float64)
