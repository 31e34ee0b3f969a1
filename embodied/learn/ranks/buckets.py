"""Tensors that travel together: how they lie beside each other, and how one bucket follows another.

    tensors ──copy──▶ bucket 0 ═══════▶ ──copy──▶ tensors
                        bucket 1 ──copy──▶ ═══════▶ ──copy──▶ …

Each bucket is packed, and compared and taken apart on arrival, while another one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.parallel.group import Group

BUCKET = 2**24  # bytes of small tensors that travel together; a larger one travels alone
ALIGNED = 512  # bytes: as torch aligns tensors on a GPU
UNDER_WAY = 3  # broadcasts at a time


@dataclass
class Bucket:
    """Tensors of one format.

    Args:
        begins: of each tensor in the bucket, elements.
    """

    dtype: torch.dtype
    names: list[str]
    begins: list[int]
    elements: int = 0

    def parts(self, flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """Returns the tensors of the bucket as they lie in ``flat``, in the shapes of ``like``."""
        return [flat[begin : begin + one.numel()].view(one.shape) for one, begin in zip(like, self.begins, strict=True)]


def buckets(tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> list[Bucket]:
    """Divides tensors, in their order, into buckets of at most :data:`BUCKET` bytes; a larger tensor has its own."""
    found: list[Bucket] = []
    filling: dict[torch.dtype, Bucket] = {}
    for name, tensor in tensors.items():
        dtype = dtypes[name]
        unit = ALIGNED // dtype.itemsize
        bucket, begin = filling.get(dtype), 0
        if bucket is not None:
            begin = -(-bucket.elements // unit) * unit
        if bucket is None or (begin + tensor.numel()) * dtype.itemsize > BUCKET:
            bucket, begin = Bucket(dtype, [], []), 0
            filling[dtype] = bucket
            found.append(bucket)
        bucket.names.append(name)
        bucket.begins.append(begin)
        bucket.elements = begin + tensor.numel()
    return found


def pack(bucket: Bucket, tensors: Sequence[Tensor], flat: Tensor) -> Tensor:
    """Copies the tensors of a bucket into ``flat``, which may be longer; returns the part that they take."""
    flat = flat[: bucket.elements]
    torch._foreach_copy_(bucket.parts(flat, tensors), list(tensors))
    return flat


def unpack(bucket: Bucket, flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copies what :func:`pack` has put into ``flat`` into tensors, however these lie in memory."""
    torch._foreach_copy_(list(tensors), bucket.parts(flat, tensors))


class Rooms:
    """Memory for buckets that follow each other; it is used again after :data:`UNDER_WAY` buckets of a format."""

    def __init__(self) -> None:
        self._of: dict[torch.dtype, deque[Tensor]] = {}

    def of(self, bucket: Bucket, like: Tensor) -> Tensor:
        """Returns room for a bucket, [elements], on the device of ``like``. One of a large tensor has its own."""
        size = BUCKET // bucket.dtype.itemsize
        if bucket.elements > size:
            return like.new_empty(bucket.elements, dtype=bucket.dtype)
        rooms = self._of.setdefault(bucket.dtype, deque())
        if len(rooms) < UNDER_WAY:
            rooms.append(like.new_empty(size, dtype=bucket.dtype))
        rooms.rotate()
        return rooms[0][: bucket.elements]


class Stream:
    """Broadcasts to a group that follow each other without a pause."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._under_way: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()

    def begin(self, tensor: Tensor, arrived: Callable[[], None] = lambda: None) -> None:
        """Begins a broadcast, and waits until fewer than :data:`UNDER_WAY` others are.

        Args:
            arrived: called once the tensor is here.
        """
        self._under_way.append((self._group.begin_broadcast(tensor), arrived))
        if len(self._under_way) >= UNDER_WAY:
            self._finish_one()

    def _finish_one(self) -> None:
        wait, arrived = self._under_way.popleft()
        wait()
        arrived()

    def finish(self) -> None:
        """Waits for all of them. Raises :class:`embodied.errors.RankError`: one does not come."""
        while self._under_way:
            self._finish_one()
