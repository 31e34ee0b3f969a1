"""Ranges of the demonstrations: over which values the action tokens are spread, and what the state is relative to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied.data.demonstrations import Demonstration


def quantiles(episodes: Sequence[Demonstration]) -> dict[str, Any]:
    """1 % and 99 % quantiles of each dimension of actions and state, over all control steps, as
    :meth:`embodied.protocols.Clonable.use_statistics` takes them."""
    blocks = {"action": _block(np.concatenate([episode.actions for episode in episodes]))}
    if all("state" in episode.fields for episode in episodes):
        blocks["proprio"] = _block(np.concatenate([episode.fields["state"] for episode in episodes]))
    return blocks


def _block(values: np.ndarray) -> dict[str, list[float]]:
    low, high = np.quantile(values.astype(np.float64), (0.01, 0.99), axis=0)
    return {"q01": low.tolist(), "q99": high.tolist()}
