"""Tells the loss of another process from errors of this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from embodied.errors import RankError

LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe", "TCPStore")
"""What stands in the message of a RuntimeError that torch raises when a rank is gone or late."""


@contextmanager
def collective(rank: int) -> Iterator[None]:
    """Turns torch's errors about processes that do not come into :class:`RankError`.

    Args:
        rank: of this process.
    """
    try:
        yield
    except RuntimeError as error:
        if not lost_rank(error):
            raise
        raise RankError(
            f"rank {rank} waited for the other ranks in vain: {str(error).splitlines()[0]}",
            "see what the rank that ended first has printed; if one is only slow, raise cluster.timeout_s",
        ) from error


def lost_rank(error: BaseException) -> bool:
    """Returns whether ``error`` only says that another rank is gone or late."""
    if isinstance(error, RankError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)
