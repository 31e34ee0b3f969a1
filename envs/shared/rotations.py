"""Rotations in the form that policies expect."""

from __future__ import annotations

import math

import numpy as np


def axis_angle(x: float, y: float, z: float, w: float) -> np.ndarray:
    """Converts a unit quaternion to a rotation vector [3] in rad, as robosuite and OpenVLA-OFT compute it."""
    w = min(max(w, -1.0), 1.0)
    length = np.sqrt(1.0 - w * w)
    if math.isclose(length, 0.0):
        return np.zeros(3)
    return np.array([x, y, z]) * 2.0 * math.acos(w) / length


def quaternion_of(vector: np.ndarray) -> np.ndarray:
    """Converts a rotation vector [3] in rad to a unit quaternion [4] (w, x, y, z). That of zero is exactly
    (1, 0, 0, 0)."""
    angle = float(np.linalg.norm(vector))
    axis = vector / angle if angle else np.zeros(3)
    return np.array([math.cos(angle / 2), *(math.sin(angle / 2) * axis)])


def product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Product [4] of two quaternions (w, x, y, z): the rotation ``second`` in the frame that ``first`` has led to."""
    (w, *u), (s, *v) = first, second
    a, b = np.array(u), np.array(v)
    return np.array([w * s - a @ b, *(w * b + s * a + np.cross(a, b))])


def turned(quaternion: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotates a vector [3] by a unit quaternion (w, x, y, z)."""
    axis = quaternion[1:]
    across = 2.0 * np.cross(axis, vector)
    return vector + quaternion[0] * across + np.cross(axis, across)
