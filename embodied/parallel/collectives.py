"""Collectives of torch's process group, for code that has no :class:`~embodied.parallel.group.Group` at hand.

Without a process group there is one process, of rank 0. With ``among`` they are collectives of some processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from embodied.parallel.group import Group

Value = TypeVar("Value")


def here(among: Group | None = None) -> int:
    """Returns this process's rank, of all or among some."""
    if among is not None:
        return among.rank
    return dist.get_rank() if _several() else 0


def count(among: Group | None = None) -> int:
    """Returns the number of processes."""
    if among is not None:
        return among.size
    return dist.get_world_size() if _several() else 1


def of_first(
    compute: Callable[[], Value], group: dist.ProcessGroup | None = None, among: Group | None = None
) -> Value:  # fmt: skip
    """Calls ``compute`` on rank 0 alone; returns its value, or raises its error, on every rank.

    Args:
        group: torch's process group of another thread.
    """
    box: list[Any] = [_outcome(compute) if here(among) == 0 else None]
    if _several() and count(among) > 1:
        first, usual = (0, None) if among is None else (among.members[0], among.processes)
        dist.broadcast_object_list(box, src=first, group=group or usual)
    value, error = box[0]
    if error is not None:
        raise error
    return value


def together(compute: Callable[[], Value], among: Group | None = None) -> Value:
    """Calls ``compute`` on every rank. If it fails on one, raises the error of the first such rank on all."""
    value, error = _outcome(compute)
    errors: list[Any] = [error] * count(among)
    if _several() and count(among) > 1:
        dist.all_gather_object(errors, error, group=among and among.processes)
    for failed in errors:
        if failed is not None:
            raise failed
    return value  # type: ignore[return-value]


def background_group(among: Group | None = None) -> dist.ProcessGroup | None:
    """Makes a process group of all ranks, or of some, for another thread; a collective of all. None without a process
    group, and of one rank.

    Collectives of one process group must come in the same order on all ranks, and two threads that share one keep no
    order. It uses gloo, because what it carries lies in host memory.
    """
    if not _several():
        return None
    made = dist.new_group(None if among is None else list(among.members), backend="gloo")
    return None if among is not None and (among.size == 1 or not among.here) else made


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _outcome(compute: Callable[[], Value]) -> tuple[Value | None, Exception | None]:
    try:
        return compute(), None
    except Exception as error:  # noqa: BLE001  raised on every rank by who called
        return None, error
