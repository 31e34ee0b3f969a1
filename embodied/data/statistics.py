"""Statistics of demonstrated actions and state, by which policies scale both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied.data.demonstrations import Demonstration


def statistics_of(episodes: Sequence[Demonstration]) -> dict[str, Any]:
    """Computes 1 % and 99 % quantiles, minimum, maximum, mean and standard deviation of each dimension of actions and
    state, over all control steps.

    The result is an argument for :meth:`embodied.protocols.UsesStatistics.use_statistics`.
    """
    blocks = {"action": _block(np.concatenate([episode.actions for episode in episodes]))}
    if all("state" in episode.fields for episode in episodes):
        blocks["proprio"] = _block(np.concatenate([episode.fields["state"] for episode in episodes]))
    return blocks


def _block(values: np.ndarray) -> dict[str, list[float]]:
    exact = values.astype(np.float64)
    low, high = np.quantile(exact, (0.01, 0.99), axis=0)
    found = {"q01": low, "q99": high, "min": exact.min(axis=0), "max": exact.max(axis=0)}
    found |= {"mean": exact.mean(axis=0), "std": exact.std(axis=0)}
    return {name: value.tolist() for name, value in found.items()}
