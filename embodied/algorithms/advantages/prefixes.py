"""What texts of a group have in common although they are worth different rewards (Cosmos-RL)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def common_prefixes(texts: Sequence[np.ndarray], group_ids: np.ndarray, scores: np.ndarray, least: int) -> np.ndarray:
    """Returns how many of its first tokens each of E texts shares with one of its group of another score: int64 [E].
    Of several such texts the one that has most in common counts; what is not more than ``least`` counts as 0.

    Args:
        texts: int [length] each.
        group_ids: int [E].
        scores: float [E].

    >>> texts = [np.array([1, 2, 3]), np.array([1, 2, 4]), np.array([1, 2, 3])]
    >>> common_prefixes(texts, np.zeros(3), np.array([0.0, 1.0, 0.0]), 1).tolist()
    [2, 2, 2]
    """
    found = np.zeros(len(texts), np.int64)
    for group in np.unique(group_ids):
        members = np.flatnonzero(group_ids == group).tolist()
        for one in members:
            others = [other for other in members if scores[other] != scores[one]]
            found[one] = max((_common(texts[one], texts[other]) for other in others), default=0)
    return np.where(found > least, found, 0)


def _common(one: np.ndarray, other: np.ndarray) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
