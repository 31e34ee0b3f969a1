"""Which records a batch takes: a function of seed, optimizer step and the number of records, of nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied.random import Stream, generator

OWN, DEMONSTRATED = 0, 1
"""Parts of a batch, the last number of a draw's place."""


def sampled(length: int, seed: int, step: int, size: int, rank: int = 0, part: int = OWN) -> np.ndarray:
    """Draws evenly and with replacement from ``length`` records: int64 [size].

    Args:
        seed: of the run.
        step: optimizer step, counted through the run.
        rank: of the process that reads them.
        part: :data:`OWN` or :data:`DEMONSTRATED`.

    Raises:
        ValueError: there is no record, and ``size`` is above 0.

    >>> sampled(10, seed=0, step=3, size=4).tolist() == sampled(10, seed=0, step=3, size=4).tolist()
    True
    """
    if size and length < 1:
        raise ValueError(f"{size} of {length} records cannot be drawn")
    if not size:
        return np.zeros(0, np.int64)
    return generator(seed, Stream.REPLAYED, step, rank, part).integers(length, size=size, dtype=np.int64)


def shares(lengths: Sequence[int], size: int) -> list[int]:
    """Divides a batch over ranks in proportion to the records that each has. What is left over goes to the largest
    remainders, of equal ones to the first ranks.

    >>> shares([30, 10, 0], 6)
    [5, 1, 0]

    Raises:
        ValueError: no rank has a record.
    """
    total = sum(lengths)
    if total < 1:
        raise ValueError("no rank has a record")
    whole = [size * length // total for length in lengths]
    left = size - sum(whole)
    order = sorted(range(len(lengths)), key=lambda rank: (-(size * lengths[rank] % total), rank))
    for rank in order[:left]:
        whole[rank] += 1
    return whole
