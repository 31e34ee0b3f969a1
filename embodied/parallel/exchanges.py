"""The collectives of a group of processes. A group of one is given back what it gives, and needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from embodied.errors import RankError

if TYPE_CHECKING:  # importing torch takes seconds, and most mistakes are found without it
    from torch import Tensor

T = TypeVar("T")
LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "Broken pipe", "TCPStore")
"""What stands in the message of a RuntimeError that torch raises when a rank is gone or late."""


class Exchanges:
    """Collectives, which all processes of a group call in the same order.

    Attributes:
        rank: of this process in the group.
        members: the ranks in the run, by rank in the group.
    """

    rank: int
    size: int
    members: tuple[int, ...]
    _processes: Any  # torch's process group; None = that of all processes, or there is none

    def gather(self, value: T) -> list[T]:
        """Returns every process's value, by rank; anything that can be pickled."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        with collective(self.members[self.rank]):
            dist.all_gather_object(values, value, group=self._processes)
        return values

    def any(self, flag: bool) -> bool:
        """Returns whether ``flag`` is true in any process."""
        return any(self.gather(flag))

    def add(self, value: float) -> float:
        """Returns the sum over ranks, added in their order: the same bits on all."""
        return sum(self.gather(value))

    def sum(self, tensor: Tensor) -> Tensor:
        """Returns the sum over ranks, computed in place."""
        if self.size > 1:
            import torch.distributed as dist

            with collective(self.members[self.rank]):
                dist.all_reduce(tensor, group=self._processes)
        return tensor

    def of_first(self, value: T | None) -> T:
        """Returns what rank 0 of the group gives; anything that can be pickled."""
        return self.of_rank(value, 0)

    def of_rank(self, value: T | None, rank: int) -> T:
        """Returns what a process of the group gives; anything that can be pickled."""
        box: list[Any] = [value]
        if self.size > 1:
            import torch.distributed as dist

            with collective(self.members[self.rank]):
                dist.broadcast_object_list(box, src=self.members[rank], group=self._processes)
        return box[0]

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrites ``tensor`` with that of rank 0 of the group."""
        self.begin_broadcast(tensor)()
        return tensor

    def begin_broadcast(self, tensor: Tensor) -> Callable[[], None]:
        """Begins to overwrite ``tensor`` with that of rank 0 of the group. What is returned waits until that is done;
        until then nobody changes the tensor."""
        if self.size == 1:
            return lambda: None
        import torch.distributed as dist

        rank = self.members[self.rank]
        with collective(rank):
            work = dist.broadcast(tensor, src=self.members[0], group=self._processes, async_op=True)

        def wait() -> None:
            with collective(rank):
                work.wait()

        return wait

    def exchange(self, sent: Tensor, to: Sequence[int], of: Sequence[int]) -> Tensor:
        """Sends each rank its part of a flat tensor. Returns what all have sent to this one, by rank.

        Args:
            to: elements for each rank, in the order in which they stand.
            of: elements that each rank sends to this one.
        """
        if self.size == 1:
            return sent
        import torch.distributed as dist

        got = sent.new_empty(sum(of))
        with collective(self.members[self.rank]):
            dist.all_to_all_single(got, sent, list(of), list(to), group=self._processes)
        return got


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
