"""The records that may be drawn, in host memory: a ring of episodes, each followed by its end.

An entry is a record, or the last observation of an episode that was cut off (``num_steps`` 0). So what was observed
after an entry stands in the next one, and nothing is kept twice.

    … │ o₀ a₀ r₀ │ o₁ a₁ r₁ truncated │ o₂ (num_steps 0) │ o₀ a₀ r₀ │ o₁ a₁ r₁ terminated │ …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.types import ArraySpec, EpisodeResult


class Memory:
    """A ring of entries. Index 0 is the oldest one that it holds.

    Args:
        fields: of an entry; ``num_steps`` is among them.
        capacity: most entries.
    """

    def __init__(self, fields: Mapping[str, ArraySpec], capacity: int) -> None:
        self.capacity, self.total = capacity, 0
        self._arrays = {name: np.zeros((capacity, *spec.shape), spec.dtype) for name, spec in fields.items()}

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    def append(self, entries: Mapping[str, np.ndarray]) -> None:
        """Appends n entries, [n, …] each; the oldest leave the ring."""
        count = len(entries["num_steps"])
        kept = np.arange(max(0, count - self.capacity), count)
        for name, array in self._arrays.items():
            array[(self.total + kept) % self.capacity] = entries[name][kept]
        self.total += count

    def batch(self, index: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Reads fields of entries int64 [n]: [n, …] each."""
        places = (self.total - len(self) + index) % self.capacity
        return {name: self._arrays[name][places] for name in names}

    @property
    def transitions(self) -> np.ndarray:
        """Indices of the records whose next entry is there, int64."""
        steps = self.batch(np.arange(len(self)), ["num_steps", "terminated"])
        records = steps["num_steps"] > 0
        records[-1:] &= steps["terminated"][-1:]
        return np.flatnonzero(records)

    def state_dict(self) -> dict[str, Any]:
        """Returns the entries, for checkpoints."""
        kept = self.batch(np.arange(len(self)), [*self._arrays])
        return {"total": self.total, **{name: torch.from_numpy(array) for name, array in kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned."""
        kept: dict[str, Tensor] = {name: state[name] for name in self._arrays}
        self.total = int(state["total"]) - len(kept["num_steps"])
        self.append({name: tensor.numpy() for name, tensor in kept.items()})


def entries_of(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Copies the entries of episodes, whose records stand in a slab, in their order."""
    rows = np.array([row for result in results for row in _rows(result)], np.int64)
    return {name: arrays[name][rows] for name in names}


def _rows(result: EpisodeResult) -> list[int]:
    return [*result.rows, *([result.final_row] if result.final_row >= 0 else [])]
