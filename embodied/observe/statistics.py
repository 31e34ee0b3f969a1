"""Confidence interval of a success rate from few episodes."""

from __future__ import annotations

import math


def wilson(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Interval (low, high) in 0..1 for the success rate behind ``successes`` out of ``n``; (0, 1) when ``n`` is 0.

    Wilson (1927): the rates p with ``|p̂ − p| ≤ z·√(p(1−p)/n)``. Unlike ``p̂ ± z·√(p̂(1−p̂)/n)`` it is useful at 0/n
    and n/n. ``z`` = 1.96 is 95 %.

    Raises:
        ValueError: ``successes`` is not in 0..n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"got {successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    # At 0/n and n/n one end is exactly 0 or 1, which rounding would miss.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half
