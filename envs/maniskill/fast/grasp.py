"""``Panda.is_grasping`` for one scene on the CPU (mani_skill 3.0.1, ``agents/robots/panda/panda.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .numbers import ONE, TWO, Function, Norm, Number

MIN_FORCE_N = 0.5
SHORT = np.float32(1e-6)  # a vector that is not made one of length 1


class Grasp:
    """Tests whether both fingers press on an object, each from its side.

    ManiSkill computes the angles of forces of nothing as well. Where a finger presses too little, they decide nothing
    and are not computed here.
    """

    def __init__(self, env: Any, thing: Any, max_angle: float = 85) -> None:
        import torch

        self._scene, self._max_angle, self._thing = env.scene, max_angle, thing._bodies[0]
        self._fingers = [(env.agent.finger1_link._bodies[0], 1), (env.agent.finger2_link._bodies[0], -1)]
        self._norm, self._arccos, self._degrees = Norm(3), Function("arccos"), Function("rad2deg")
        self._pair = [np.zeros((1, 1, 3), np.float32), np.zeros((1, 3, 1), np.float32)]
        self._tensors, self._dot = [torch.from_numpy(row) for row in self._pair], torch.bmm
        self._squares = np.zeros((1, 4), np.float32)
        self._squares_tensor = torch.from_numpy(self._squares)

    def holds(self) -> bool:
        """Returns whether the object is grasped now."""
        px, thing = self._scene.px, self._thing
        touching = [(contact, *contact.bodies) for contact in px.get_contacts()]
        touching = [one for one in touching if one[1] is thing or one[2] is thing]
        if not touching:
            return False
        timestep = np.float32(px.timestep)
        for finger, side in self._fingers:
            own = [(contact, 1 if a is finger else -1) for contact, a, b in touching if a is finger or b is finger]
            force = _total_impulse(own).astype(np.float32) / timestep
            strength = self._norm(force)
            if not strength >= MIN_FORCE_N:
                return False
            if not self._angle(self._opening(finger, side), force, strength) <= self._max_angle:
                return False
        return True

    def _angle(self, direction: np.ndarray, force: np.ndarray, strength: Number) -> Number:
        """``compute_angle_between``, in degrees. Its ``einsum`` of two vectors is a product of matrices."""
        self._pair[0][0, 0] = _normalized(direction, self._norm(direction))
        self._pair[1][0, :, 0] = _normalized(force, strength)
        cosine = self._dot(*self._tensors).numpy()[0, 0, 0]
        return self._degrees(self._arccos(np.minimum(np.maximum(cosine, -ONE), ONE)))

    def _opening(self, finger: Any, side: int) -> np.ndarray:
        """The direction in which the finger opens: ± second column of ``quaternion_to_matrix``."""
        q = finger.entity_pose.q
        np.multiply(q, q, out=self._squares[0])
        two_s = ONE / self._squares_tensor.sum(-1).numpy()[0] * TWO
        r, i, j, k = q
        column = (two_s * (i * j - k * r), ONE - two_s * (i * i + k * k), two_s * (j * k + i * r))
        return np.array(column, np.float32) * np.float32(side)


def _total_impulse(contacts: list[tuple[Any, int]]) -> np.ndarray:
    """``compute_total_impulse`` float64 [3] of contacts and their signs, N s."""
    total = np.zeros(3)
    for contact, sign in contacts:
        total += np.add.reduce([point.impulse for point in contact.points], axis=0) * sign
    return total


def _normalized(vector: np.ndarray, norm: Number) -> np.ndarray:
    return vector * (ONE / (ONE if norm < SHORT else norm))
