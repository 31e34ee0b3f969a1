"""The record store: rows of a slab, leased to the episodes whose records they hold.

    episode ── lease(owner, version) ──▶ row ── records are written, trained on ──▶ keep(…), give_back(…) ──▶ free

A lease says whose the row is and which weights acted. A row that was given back may be leased to another episode. A
user of the old lease then gets an error, instead of another episode's record. Back-pressure is by rows: without a free
row no episode begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from embodied.runtime.slab import Slab
from embodied.types import EpisodeResult, Lease


class RecordStore:
    """Leases the rows of ``slab`` to episodes. One process leases them; the env workers only write where they are told
    to."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self._free = list(range(slab.rows - 1, -1, -1))
        self._leased: dict[int, Lease] = {}
        self._number = 0

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The slab's arrays, [R, …]."""
        return self.slab.arrays

    @property
    def free(self) -> int:
        """Rows that are not leased."""
        return len(self._free)

    @property
    def leased(self) -> Collection[Lease]:
        """The leases that hold now."""
        return self._leased.values()

    def lease(self, owner: int, version: int) -> Lease:
        """Lease a free row.

        Args:
            owner: id of the episode.
            version: weight version that acts in it.

        Raises:
            LookupError: no row is free.
        """
        if not self._free:
            raise LookupError(f"all {self.slab.rows} rows are leased")
        row = self._free.pop()
        self._number += 1
        self._leased[row] = Lease(row, owner, version, self._number)
        return self._leased[row]

    def give_back(self, lease: Lease) -> None:
        """End a lease: its row is free.

        Raises:
            LookupError: it has ended before.
        """
        self.check([lease])
        del self._leased[lease.row]
        self._free.append(lease.row)

    def keep(self, results: Iterable[EpisodeResult] = (), besides: Iterable[Lease] = ()) -> None:
        """Gives back every leased row but those of ``results`` and ``besides``.

        Raises:
            LookupError: a lease of either has ended before.
        """
        kept = [*(lease for result in results for lease in result.leases), *besides]
        self.check(kept)
        for lease in set(self._leased.values()) - set(kept):
            self.give_back(lease)

    def check(self, leases: Iterable[Lease]) -> None:
        """Raises LookupError if a lease has ended, so that its row may hold another episode's record.

        Raises:
            LookupError: a lease has ended; its row is free, or another episode's.
        """
        for lease in leases:
            now = self._leased.get(lease.row)
            if now != lease:
                holder = "free" if now is None else f"leased to episode {now.owner}"
                raise LookupError(
                    f"the lease of row {lease.row} to episode {lease.owner} has ended: the row is {holder}"
                )
