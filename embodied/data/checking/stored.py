"""Compares the statistics that a data set keeps of itself (``meta/stats.json``) with those of its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

EXACT = ("min", "max", "mean", "std")
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
CLOSE = 1e-3  # share of a dimension's range by which a number may differ
ROUGH = 0.1  # the same of quantiles, which LeRobot takes from histograms


def differences(name: str, stored: Any, values: np.ndarray) -> Iterator[str]:
    """Compares the stored statistics of a data set's column with its values; yields each mistake in words.

    Args:
        stored: what the file says of the column: ``{"min": […], "q01": […], …}``.
        values: of all steps, [N, D].
    """
    if not isinstance(stored, Mapping):
        yield f"'{name}' has no statistics, but {str(stored)[:40]}"
        return
    exact = values.reshape(len(values), -1).astype(np.float64)
    read: dict[str, np.ndarray] = {}
    for key in (*EXACT, *QUANTILES):
        if key in stored:
            found = _array(stored[key])
            if found is None or len(found) != exact.shape[1] or not np.isfinite(found).all():
                yield f"{key} of '{name}' is {str(stored[key])[:60]}, expected {exact.shape[1]} finite numbers"
            else:
                read[key] = found
    if missing := [key for key in EXACT if key not in stored]:
        yield f"'{name}' has no {', '.join(missing)}"
    yield from _unordered(name, read)
    width = np.maximum(exact.max(axis=0) - exact.min(axis=0), 1e-6)
    for key, found in read.items():
        right = _computed(key, exact)
        apart = np.abs(found - right) / width
        worst = int(apart.argmax())
        if apart[worst] > (CLOSE if key in EXACT else ROUGH):
            yield f"{key} of '{name}' is {found[worst]:.6g} in dimension {worst}, that of the data {right[worst]:.6g}"


def _unordered(name: str, read: Mapping[str, np.ndarray]) -> Iterator[str]:
    order = [key for key in ("min", *QUANTILES, "max") if key in read]
    for low, high in pairwise(order):
        above = np.flatnonzero(read[low] > read[high] + 1e-6 * np.abs(read[high]))
        if len(above):
            numbers = f"{read[low][above[0]]:.6g}", f"{read[high][above[0]]:.6g}"
            yield f"{low} of '{name}' is {numbers[0]} in dimension {above[0]}, above {high} {numbers[1]}"


def _computed(key: str, values: np.ndarray) -> np.ndarray:
    if key in QUANTILES:
        return np.quantile(values, QUANTILES[key], axis=0)
    computed: np.ndarray = getattr(np, key)(values, axis=0)
    return computed


def _array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None
