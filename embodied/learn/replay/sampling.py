"""Which records a batch takes: a function of seed, optimizer step, rank and the records that are there, no more.

Several ranks have a ring each, of the records that they have collected, and draw their share of a batch from it. So the
records of a run are a function of its seed for a fixed number of ranks; another number is another run
(:func:`embodied.learn.replay.header.check_same` refuses it).
"""

from __future__ import annotations

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


def symmetric(
    transitions: np.ndarray, demonstrated: np.ndarray, ratio: float, seed: int, step: int, size: int, rank: int = 0
) -> np.ndarray:  # fmt: skip
    """Draws a batch of which a fixed share are demonstrations (RLPD, arXiv 2302.02948): int64 [size], those first.

    While one of the two has nothing, the other gives the whole batch.

    Args:
        transitions: indices of the run's own transitions int64 [n].
        demonstrated: indices of demonstrations int64 [d]; own ones with a mark may stand in both.
        ratio: share of the demonstrations; RLPD has 0.5. Half a record is rounded to an even number.
        seed, step, size, rank: as of :func:`sampled`.

    Raises:
        ValueError: there is no record at all.

    >>> drawn = symmetric(np.arange(100, 200), np.arange(7), ratio=0.25, seed=0, step=3, size=8)
    >>> (drawn < 100).tolist()
    [True, True, False, False, False, False, False, False]
    """
    shown = round(size * ratio)
    if not len(demonstrated):
        shown = 0
    elif not len(transitions):
        shown = size
    first = demonstrated[sampled(len(demonstrated), seed, step, shown, rank, DEMONSTRATED)]
    return np.concatenate([first, transitions[sampled(len(transitions), seed, step, size - shown, rank, OWN)]])
