"""Rotations in the form that policies expect."""

from __future__ import annotations

import math

import numpy as np


def axis_angle(x: float, y: float, z: float, w: float) -> np.ndarray:
    """Rotation vector [3] in rad of a unit quaternion, as robosuite and OpenVLA-OFT compute it."""
    w = min(max(w, -1.0), 1.0)
    length = np.sqrt(1.0 - w * w)
    if math.isclose(length, 0.0):
        return np.zeros(3)
    return np.array([x, y, z]) * 2.0 * math.acos(w) / length
