"""Checksums by which records are told from others that stand in their place."""

from __future__ import annotations

import zlib

import numpy as np

from embodied.errors import DamagedCheckpointError
from embodied.learn.replay.segments import AGAIN, CHAIN, SUM, small_sums


def chained(block: np.ndarray, before: int | None, where: str) -> int:
    """Checks that the small fields of a block's records are what was written and follow one another, and returns the
    chain after the last.

    Args:
        before: chain before the first; None = it is not known.
        where: names the block in messages.

    Raises:
        DamagedCheckpointError: they do not.
    """
    if len(odd := np.flatnonzero(small_sums(block) != block[SUM])):
        raise DamagedCheckpointError(
            f"replayed records are damaged: {where} and {odd[0]} after it has another checksum", AGAIN
        )
    sums, chains = block[SUM].astype("<u4").tobytes(), block[CHAIN].tolist()
    for i, found in enumerate(chains):
        if before is not None and zlib.crc32(sums[4 * i : 4 * i + 4], before) != found:
            raise DamagedCheckpointError(
                f"replayed records are damaged: {where} and {i} after it does not follow the one before it",
                AGAIN,
            )
        before = found
    return int(before or 0)
