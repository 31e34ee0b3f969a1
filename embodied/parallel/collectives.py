"""What the ranks that train together say to each other about checkpoints. Without a process group there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

Value = TypeVar("Value")


def here() -> int:
    """This process's rank."""
    return dist.get_rank() if _several() else 0


def count() -> int:
    return dist.get_world_size() if _several() else 1


def of_first(compute: Callable[[], Value], group: dist.ProcessGroup | None = None) -> Value:
    """What rank 0 computes, or the error that it meets, on every rank; the others do not call ``compute``."""
    box: list[Any] = [_outcome(compute) if here() == 0 else None]
    if _several():
        dist.broadcast_object_list(box, src=0, group=group)
    value, error = box[0]
    if error is not None:
        raise error
    return value


def together(compute: Callable[[], Value]) -> Value:
    """``compute`` on every rank. If it fails on one, the error of the first such rank is raised on all."""
    value, error = _outcome(compute)
    errors: list[Any] = [error] * count()
    if _several():
        dist.all_gather_object(errors, error)
    for failed in errors:
        if failed is not None:
            raise failed
    return value  # type: ignore[return-value]


def background_group() -> dist.ProcessGroup | None:
    """A group of all ranks for another thread; collective.

    A group of its own, because collectives of one group must come in the same order on all ranks, and two threads that
    share one do not keep any. With gloo, because what it carries lies in host memory.
    """
    return dist.new_group(backend="gloo") if _several() else None


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _outcome(compute: Callable[[], Value]) -> tuple[Value | None, Exception | None]:
    try:
        return compute(), None
    except Exception as error:  # noqa: BLE001  raised on every rank by who called
        return None, error
