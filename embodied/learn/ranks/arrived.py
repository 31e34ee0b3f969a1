"""Records of a process that trains on what others have collected (:mod:`embodied.learn.ranks.deal`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""Fields of records, [n, …] each."""


class Arrived(dict[str, np.ndarray]):
    """Records of a process that trains: numbers of all of them, and what passes read of those that were fetched.

    Args:
        arrays: [n, …] each; fields that passes read are 0 as yet, in memory that is not touched.
        places: process and row from which each record comes, int64 [n, 2].
        size: processes of the run.
        get: gets what passes read of rows of each process, by process. All processes of the run take part.
    """

    def __init__(
        self, arrays: Arrays, places: np.ndarray, size: int,
        get: Callable[[Sequence[np.ndarray]], Mapping[str, np.ndarray]],
    ) -> None:  # fmt: skip
        super().__init__(arrays)
        self._places, self._size, self._get = places, size, get

    def fetch(self, rows: np.ndarray) -> None:
        """Gets what passes read of the records in ``rows`` int64 [m]. Once an update; all processes of the run take
        part."""
        rows = np.unique(rows)
        order = rows[np.argsort(self._places[rows, 0], kind="stable")]
        sources, there = self._places[order].T
        for name, array in self._get([there[sources == rank] for rank in range(self._size)]).items():
            self[name][order] = array
