"""Collectives of torch's process group, for code that has no :class:`~embodied.parallel.group.Group` at hand.

Without a process group there is one process, of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

Value = TypeVar("Value")


def here() -> int:
    """Returns this process's rank."""
    return dist.get_rank() if _several() else 0


def count() -> int:
    """Returns the number of processes."""
    return dist.get_world_size() if _several() else 1


def of_first(compute: Callable[[], Value], group: dist.ProcessGroup | None = None) -> Value:
    """Calls ``compute`` on rank 0 alone; returns its value, or raises its error, on every rank."""
    box: list[Any] = [_outcome(compute) if here() == 0 else None]
    if _several():
        dist.broadcast_object_list(box, src=0, group=group)
    value, error = box[0]
    if error is not None:
        raise error
    return value


def together(compute: Callable[[], Value]) -> Value:
    """Calls ``compute`` on every rank. If it fails on one, raises the error of the first such rank on all."""
    value, error = _outcome(compute)
    errors: list[Any] = [error] * count()
    if _several():
        dist.all_gather_object(errors, error)
    for failed in errors:
        if failed is not None:
            raise failed
    return value  # type: ignore[return-value]


def background_group() -> dist.ProcessGroup | None:
    """Makes a process group of all ranks for another thread; a collective. None without a process group.

    Collectives of one process group must come in the same order on all ranks, and two threads that share one keep no
    order. It uses gloo, because what it carries lies in host memory.
    """
    return dist.new_group(backend="gloo") if _several() else None


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _outcome(compute: Callable[[], Value]) -> tuple[Value | None, Exception | None]:
    try:
        return compute(), None
    except Exception as error:  # noqa: BLE001  raised on every rank by who called
        return None, error
