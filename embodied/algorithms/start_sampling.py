"""Draws starts with unequal chances, and the weights with which a mean over them stays unbiased
(``data.start_sampling: informative``).

A start that is drawn with a chance q in place of 1/N counts ``1 / (N · q)``: the expected sum over the draws, divided
by their number, is then the mean over all N starts (importance sampling), whatever the chances were made from.
"""

from __future__ import annotations

import numpy as np

EVEN = 0.5
"""Share of the draws that is uniform, so that no weight is above 1 / EVEN and no start is left for good."""


def chances(spread: np.ndarray) -> np.ndarray:
    """Returns the chance of each start in a draw, float64 [N]: half of it uniform, half in proportion to ``spread``
    float [N], how much returns of that start may differ."""
    total = spread.sum()
    uniform = np.full(len(spread), 1 / len(spread))
    return uniform if total == 0 else EVEN * uniform + (1 - EVEN) * spread / total


def systematic(chance: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Draws ``count`` starts, int64 [count]: start s comes ``count · chance[s]`` times on average, and never a whole
    one more or less often. Systematic sampling (Madow, 1949): evenly spaced points in the starts' chances, laid end to
    end in a random order.

    Args:
        chance: float64 [N], of sum 1.

    >>> sorted(systematic(np.array([0.5, 0.25, 0.25]), 4, np.random.default_rng(0)).tolist())
    [0, 0, 1, 2]
    """
    order = generator.permutation(len(chance))
    points = (generator.random() + np.arange(count)) / count
    ends = np.cumsum(chance[order])
    return order[np.searchsorted(ends, points * ends[-1], side="right").clip(max=len(order) - 1)]


def weights(chance: np.ndarray) -> np.ndarray:
    """Returns how much an episode of each start counts, float64 [N]."""
    return 1 / (len(chance) * chance)
