"""What a process reads of each update: its part of the run's own records, and of the demonstrations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied.learn.replay.demonstrations import Entries, Joined
from embodied.learn.replay.sampling import shown_of, symmetric
from embodied.parallel.group import Group


@dataclass(frozen=True)
class Share:
    """A rank's share of each update of an iteration."""

    transitions: np.ndarray  # int64 [T], indices of own transitions
    size: int  # so many are drawn in all
    demonstrated: np.ndarray  # int64 [S], indices of demonstrations; own ones with a mark stand in both
    shown: int  # of ``size``, so many are drawn of them

    @classmethod
    def of(cls, entries: Entries, group: Group, size: int, ratio: float) -> Share:
        """Divides an update over ranks in proportion to what each has, so that all records are drawn evenly, and all
        demonstrations. A collective.

        Args:
            size: records of the update, of all ranks.
            ratio: share of the demonstrations.
        """
        own = entries.own if isinstance(entries, Joined) else entries.transitions
        demonstrated = entries.demonstrated if ratio else own[:0]
        lengths, marks = zip(*group.gather((len(own), len(demonstrated))), strict=True)
        shown = shown_of(size, ratio, sum(lengths), sum(marks))
        part = _part(size - shown, lengths, group.rank)
        mine = _part(shown, marks, group.rank)
        return cls(own, part + mine, demonstrated, mine)

    def drawn(self, seed: int, number: int, rank: int) -> np.ndarray:
        """Draws the entries of update ``number``: indices int64 [size]."""
        return symmetric(self.transitions, self.demonstrated, self.shown, seed, number, self.size, rank)


def _part(size: int, lengths: tuple[int, ...], rank: int) -> int:
    """Returns how many of ``size`` a rank reads, in proportion to ``lengths``."""
    whole = max(sum(lengths), 1)
    return size * sum(lengths[: rank + 1]) // whole - size * sum(lengths[:rank]) // whole
