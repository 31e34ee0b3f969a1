"""Which records a batch takes: a function of seed, optimizer step, rank and the records that are there, no more.

Several ranks have a ring each, of the records that they have collected, and draw their share of a batch from it. So the
records of a run are a function of its seed for a fixed number of ranks; another number is another run
(:func:`embodied.learn.replay.header.check_same` refuses it).
"""

from __future__ import annotations

import numpy as np

from embodied.random import Stream, generator

OWN, DEMONSTRATED, ANSWERED = 0, 1, 2
"""Last number of a draw's place: the two parts of a batch, and the noise of what a policy does at a demonstrated
observation, whose number stands in place of a step."""


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


def shown_of(size: int, ratio: float, transitions: int, demonstrated: int) -> int:
    """Returns how many of a batch are demonstrations. While one of both has nothing, the other gives the whole batch.

    Args:
        size: of the batch.
        ratio: share of the demonstrations; RLPD has 0.5. Half a record is rounded to an even number.
        transitions: number of the run's own transitions.
        demonstrated: number of demonstrations.

    >>> shown_of(8, 0.25, 100, 7), shown_of(8, 0.25, 100, 0), shown_of(8, 0.25, 0, 7)
    (2, 0, 8)
    """
    if not demonstrated:
        return 0
    return round(size * ratio) if transitions else size


def symmetric(
    transitions: np.ndarray, demonstrated: np.ndarray, shown: int, seed: int, step: int, size: int, rank: int = 0
) -> np.ndarray:  # fmt: skip
    """Draws a batch of own records and demonstrations (RLPD, arXiv 2302.02948): int64 [size], demonstrations first.

    Args:
        transitions: indices of the run's own transitions int64 [n].
        demonstrated: indices of demonstrations int64 [d]; own ones with a mark may stand in both.
        shown: so many are demonstrations.
        seed, step, size, rank: as of :func:`sampled`.

    Raises:
        ValueError: there is nothing to draw from.

    >>> drawn = symmetric(np.arange(100, 200), np.arange(7), shown=2, seed=0, step=3, size=8)
    >>> (drawn < 100).tolist()
    [True, True, False, False, False, False, False, False]
    """
    first = demonstrated[sampled(len(demonstrated), seed, step, shown, rank, DEMONSTRATED)]
    return np.concatenate([first, transitions[sampled(len(transitions), seed, step, size - shown, rank, OWN)]])
