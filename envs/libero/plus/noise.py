"""LIBERO-Plus's sensor noise: five corruptions of a picture at ten strengths each, equal to the package's to the bit
where both draw the same random numbers.

Motion blur is ImageMagick 6's (``MotionBlurImage``, 16 bits a colour), computed here so that its library is not
needed. The others are the package's own, by SciPy. Sizes: the package's fog takes pictures of 256 pixels at most, and
its glass moves the first 224 rows and columns alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

KINDS = ("motion blur", "Gaussian blur", "zoom blur", "fog", "glass blur")
STRENGTHS = 10  # of each kind: numbers 1–10 are motion blur, 11–20 Gaussian blur, and so on
LARGEST = 256  # pixels of a side

_MOTION = ((5, 2), (8, 3), (10, 4), (12, 5), (15, 6), (18, 8), (20, 10), (25, 12), (30, 15), (35, 20))
"""Radius and standard deviation, pixels."""
_ZOOM = (
    (1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03), (1.36, 0.01), (1.41, 0.01), (1.46, 0.02),
    (1.51, 0.02), (1.56, 0.03),
)  # fmt: skip
"""End and step of the zoom factors, which begin at 1."""
_FOG = ((0.5, 3), (1.0, 2.8), (1.5, 2.5), (2.0, 2.2), (2.5, 2.0), (3.0, 1.8), (3.5, 1.6), (4.0, 1.5), (4.5, 1.4),
        (5.0, 1.3))  # fmt: skip
"""Share of fog, and how fast its detail gets weaker."""
_GLASS = ((0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1.0, 2, 2), (1.1, 3, 2), (1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2),
          (2.2, 5, 1), (2.5, 5, 1))  # fmt: skip
"""Standard deviation of the blur (pixels), largest move of a pixel, passes."""
_GLASS_SIDE = 224


def corrupted(picture: np.ndarray, number: int, seed: int) -> np.ndarray:
    """Returns a picture, uint8 [S, S, 3], with noise; a function of its arguments.

    Args:
        picture: as the simulator gives it, GL's rows from below.
        number: the noise, 1–50, as in a task's name.
        seed: of what the noise draws, as ``numpy.random.seed`` takes it.
    """
    kind, strength = divmod(number - 1, STRENGTHS)
    noise: Callable[[np.ndarray, int, np.random.RandomState], np.ndarray] = _FUNCTIONS[kind]
    return noise(picture, strength, np.random.RandomState(seed)).astype(np.uint8)


def _motion(picture: np.ndarray, strength: int, draws: np.random.RandomState) -> np.ndarray:
    """Adds up the pixels of a line in a drawn direction, weights from a half Gaussian."""
    radius, sigma = _MOTION[strength]
    width, angle = 2 * radius + 1, math.pi * draws.uniform(-45, 45) / 180.0
    weights = [math.exp(-(i * i) / (2.0 * sigma * sigma)) / (2.50662827463100024 * sigma) for i in range(width)]
    total = 0.0
    for weight in weights:
        total += weight
    down, right = width * math.sin(angle), width * math.cos(angle)
    length, (height, wide) = math.hypot(down, right), picture.shape[:2]
    deep = np.pad(picture * 257.0, ((width, width), (width, width), (0, 0)), mode="edge")
    summed = np.zeros(picture.shape)
    for i, weight in enumerate(weights):
        row, column = (width + math.ceil(i * part / length - 0.5) for part in (down, right))
        summed += weight / total * deep[row : row + height, column : column + wide]
    return (summed + 0.5).astype(np.int64) // 257


def _blurred(picture: np.ndarray, sigma: float) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(picture / 255.0, (sigma, sigma, 0), mode="nearest", truncate=4.0)


def _gaussian(picture: np.ndarray, strength: int, draws: np.random.RandomState) -> np.ndarray:
    return np.clip(_blurred(picture, strength + 1), 0, 1) * 255


def _zoom(picture: np.ndarray, strength: int, draws: np.random.RandomState) -> np.ndarray:
    """Averages the picture with enlarged ones."""
    end, step = _ZOOM[strength]
    factors, scaled = np.arange(1, end, step), (picture / 255.0).astype(np.float32)
    summed = np.zeros_like(scaled)
    for factor in factors:
        summed += _enlarged(scaled, factor)
    return np.clip((scaled + summed) / (len(factors) + 1), 0, 1) * 255


def _enlarged(picture: np.ndarray, factor: float) -> np.ndarray:
    from scipy.ndimage import zoom

    side = picture.shape[0]
    seen = int(np.ceil(side / float(factor)))
    top = (side - seen) // 2
    large = zoom(picture[top : top + seen, top : top + seen], (factor, factor, 1), order=1)
    over = (large.shape[0] - side) // 2
    return large[over : over + side, over : over + side]


def _fog(picture: np.ndarray, strength: int, draws: np.random.RandomState) -> np.ndarray:
    share, decay = _FOG[strength]
    scaled = picture / 255.0
    largest = scaled.max()
    scaled += share * _plasma(decay, draws)[: picture.shape[0], : picture.shape[1], np.newaxis]
    return np.clip(scaled * largest / (largest + share), 0, 1) * 255


def _plasma(decay: float, draws: np.random.RandomState) -> np.ndarray:
    """Draws a field of heights in [0, 1] by diamonds and squares, float64 [256, 256]."""
    field, step, rough = np.zeros((LARGEST, LARGEST)), LARGEST, 100.0

    def mean(total: np.ndarray) -> np.ndarray:
        return total / 4 + rough * draws.uniform(-rough, rough, total.shape)

    while step >= 2:
        half = step // 2
        corners = field[::step, ::step]
        square = corners + np.roll(corners, -1, axis=0)
        square += np.roll(square, -1, axis=1)
        field[half::step, half::step] = mean(square)
        centres, corners = field[half::step, half::step], field[::step, ::step]
        across = centres + np.roll(centres, 1, axis=0) + (corners + np.roll(corners, -1, axis=1))
        field[::step, half::step] = mean(across)
        along = centres + np.roll(centres, 1, axis=1) + (corners + np.roll(corners, -1, axis=0))
        field[half::step, ::step] = mean(along)
        step, rough = half, rough / decay
    field -= field.min()
    return field / field.max()


def _glass(picture: np.ndarray, strength: int, draws: np.random.RandomState) -> np.ndarray:
    """Blurs, lets pixels take the place of near ones, and blurs again."""
    sigma, most, passes = _GLASS[strength]
    pixels = (_blurred(picture, sigma) * 255).astype(np.uint8)
    source = np.arange(pixels.shape[0] * pixels.shape[1])
    for _ in range(passes):
        source = _moved(source, (pixels.shape[0], pixels.shape[1]), most, draws)
    moved = pixels.reshape(-1, 3)[source].reshape(pixels.shape)
    return np.clip(_blurred(moved, sigma), 0, 1) * 255


def _moved(source: np.ndarray, shape: tuple[int, int], most: int, draws: np.random.RandomState) -> np.ndarray:
    """Lets each pixel, from the last to the first, become what a near one is by then.

    Args:
        source: of each pixel, the one that it shows.
    """
    rows, columns = (np.arange(min(_GLASS_SIDE, size) - most, most, -1) for size in shape)
    moves = draws.randint(-most, most, size=(len(rows) * len(columns), 2))
    at = (rows[:, None] * shape[1] + columns).ravel()
    shown = source.tolist()
    for pixel, other in zip(at.tolist(), (at + moves[:, 1] * shape[1] + moves[:, 0]).tolist(), strict=True):
        shown[pixel] = shown[other]
    return np.array(shown)


_FUNCTIONS = (_motion, _gaussian, _zoom, _fog, _glass)
