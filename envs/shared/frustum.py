"""Finds boxes outside a camera's picture. They need not be drawn, and in software each triangle costs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

MARGIN = 1.0  # pixels around the picture that count as seen


@dataclass(frozen=True)
class Frustum:
    """The view volume of a camera, as half-spaces in the scene's frame."""

    planes: np.ndarray  # float64 [5, 4]: inside is planes @ (x, y, z, 1) >= 0

    @classmethod
    def of_pinhole(
        cls, to_camera: np.ndarray, focal: tuple[float, float], center: tuple[float, float], size: tuple[int, int]
    ) -> Frustum:
        """Makes the frustum of a camera that looks along z, with x to the right and y downwards.

        Args:
            to_camera: [4, 4], from the scene's frame to the camera's.
            focal, center, size: (horizontal, vertical), pixels.
        """
        (fx, fy), (cx, cy), (width, height) = focal, center, size
        inside = [
            [fx, 0, cx + MARGIN, 0],  # its column is at least 0
            [-fx, 0, width - cx + MARGIN, 0],
            [0, fy, cy + MARGIN, 0],
            [0, -fy, height - cy + MARGIN, 0],
            [0, 0, 1, 0],
        ]
        return cls(np.array(inside, float) @ to_camera)

    def misses(self, corners: np.ndarray) -> np.ndarray:
        """Marks boxes that lie outside the view volume, bool [n], from their corners [n, 8, 4] (x, y, z, 1)."""
        return ((corners @ self.planes.T) < 0).all(axis=1).any(axis=1)


def corners(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Returns the corners [8, 4] (x, y, z, 1) of a box along the axes; ``low`` and ``high`` [3]."""
    return np.array([[*corner, 1.0] for corner in itertools.product(*zip(low, high, strict=True))])
