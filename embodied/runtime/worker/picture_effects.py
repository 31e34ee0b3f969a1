"""Camera effects on pictures: light, contrast, blur, noise. Pure functions of arrays; strength 0 changes nothing.

Pictures are float32 [C, H, W, 3] with values from 0 to 255; :func:`to_bytes` rounds at the end, once.
"""

from __future__ import annotations

import math

import numpy as np

REACH = 3.0  # standard deviations at which a Gaussian is cut off


def brighten(pictures: np.ndarray, by: float) -> np.ndarray:
    """Multiplies all values by 1 + ``by``."""
    return pictures * np.float32(1 + by)


def stretch_contrast(pictures: np.ndarray, by: float) -> np.ndarray:
    """Multiplies the distances from the mean of each picture by 1 + ``by``."""
    mean = pictures.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    return mean + (pictures - mean) * np.float32(1 + by)


def blur(pictures: np.ndarray, sigma: float) -> np.ndarray:
    """Blurs by a Gaussian of ``sigma`` pixels in both directions. Beyond an edge stands the edge's own value."""
    weights = gaussian(sigma)
    for axis in (1, 2):
        pictures = _weigh_along(pictures, weights, axis)
    return pictures


def gaussian(sigma: float) -> np.ndarray:
    """Weights of a Gaussian, float32 [2 r + 1] with r = 3 ``sigma`` rounded up; their sum is 1."""
    radius = math.ceil(REACH * sigma)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma else np.ones(1)
    return (weights / weights.sum()).astype(np.float32)


def _weigh_along(pictures: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    radius, length = len(weights) // 2, pictures.shape[axis]
    around = [(radius, radius) if each == axis else (0, 0) for each in range(pictures.ndim)]
    padded = np.pad(pictures, around, mode="edge")
    out = np.zeros_like(pictures)
    before = (slice(None),) * axis
    for offset, weight in enumerate(weights):
        out += weight * padded[(*before, slice(offset, offset + length))]
    return out


def add_noise(pictures: np.ndarray, share: float, drawn: np.ndarray) -> np.ndarray:
    """Adds normal noise to pictures.

    Args:
        share: standard deviation as a share of 255.
        drawn: standard normal numbers, of the pictures' shape.
    """
    return pictures + np.float32(255 * share) * drawn


def to_bytes(pictures: np.ndarray) -> np.ndarray:
    """Rounds to uint8; what lies beyond 0 or 255 is cut off."""
    return np.clip(np.rint(pictures), 0, 255).astype(np.uint8)
