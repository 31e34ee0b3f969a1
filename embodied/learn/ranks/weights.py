"""Gives the weights of the processes that train to those that only collect episodes.

    train ranks: shards, gathered tensor by tensor ─▶ train rank 0 ─▶ buckets, broadcast ─▶ checked ─▶ the policy acts

All build the policy from the same files and compare checksums when they connect, so nothing is sent before it was
changed. What travels is what is trained, in a process group of its own; frozen weights never do. A version says which
weights act: weights that are there already are not sent again.

With ``algorithm.max_staleness`` weights go ahead, in a thread and a process group of their own: as soon as an update
has made them, beside the rollout and the update that run then. They arrive in other memory, and act when the processes
that train say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.errors import RanksDifferError
from embodied.learn.ranks.beside import Beside, on_own_stream
from embodied.learn.ranks.buckets import Bucket, Rooms, Stream, buckets, pack, unpack
from embodied.parallel.group import Group
from embodied.parallel.same_weights import SHOWN, checksum
from embodied.protocols import Policy

SAME, NEW, AHEAD, LATER = 0, 1, 2, 3
"""The weights that act stay; others follow; others have gone ahead; it is said once what goes ahead has arrived."""
Named = Mapping[str, Tensor]


class Sender:
    """Sends trained tensors. All processes that train make the same calls, the first of them sends.

    Args:
        group: the first process that trains, and those that only collect.
        beside: the same processes, for what goes ahead.
        dtypes: of the tensors where they act, by name.
        checks: checksums are sent, too.
        stops: whether a stop signal has come here. What goes ahead is not waited for then: nothing acts any more.
    """

    def __init__(
        self, group: Group, beside: Group, dtypes: Mapping[str, torch.dtype], checks: bool,
        stops: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._group, self._beside, self._dtypes, self._checks, self._stops = group, beside, dtypes, checks, stops
        self._lock = Lock()  # an update's thread asks and sends ahead, the main thread sends
        self._forgot = False
        self._there: tuple[bool, int] | None = (False, 0)  # what the others have: an average or not, of which version
        self._ahead: dict[int, Beside[float]] = {}  # version → its transfer, and the seconds that this takes
        self._last: Beside[float] | None = None
        self._buckets: list[Bucket] = []
        self._rooms = Rooms()  # in which buckets are packed
        self._bytes, self._waited_s, self._transfer_s = 0, 0.0, 0.0

    def forget(self) -> None:
        """Sends everything the next time: the weights have become others without a new version."""
        with self._lock:
            self._there, self._forgot = None, True
            self._ahead.clear()

    def send(self, tensors: Named, version: int, average: bool = False) -> None:
        """Sends the tensors unless the others have them.

        Args:
            version: optimizer steps that they have seen.
            average: they are the moving average after these steps.

        Raises:
            RankError: another process is gone or late, also while they went ahead.
        """
        if self._group.size == 1:
            return
        began = time.perf_counter()
        with self._lock:
            kind = self._kind(version, average)
            self._say(kind, version)
            if kind == SAME:
                return
            self._there = average, version
            if kind == NEW:
                self._transfer_s += self._transfer(self._group, self._packed(tensors))
            elif (transfer := self._ahead.pop(version)).wait(self._stops):
                self._transfer_s += transfer.result()
        self._waited_s += time.perf_counter() - began
        if self._group.here:
            self._bytes += sum(tensor.numel() * self._dtypes[name].itemsize for name, tensor in tensors.items())

    def _kind(self, version: int, average: bool) -> int:
        """Returns what comes of the weights. Before they are sent it waits for what goes ahead: two transfers between
        the same processes may wait for each other on a GPU."""
        if self._there == (average, version):
            return SAME
        if not average and version in self._ahead:
            return SAME if self._stops() else AHEAD
        if self._last is None:  # else no process has shares of the tensors, and each may stop by itself
            return NEW
        if self._last.is_alive() and not self._stops():
            self._say(LATER, version)
            self._last.wait(self._stops)
        return SAME if self._stops() else NEW

    def _say(self, kind: int, version: int) -> None:
        if self._group.here:
            self._group.broadcast(torch.tensor([kind, version, int(self._forgot)]))
            self._forgot = False

    def is_there(self, version: int) -> bool:
        """Returns whether the others have the weights of a version, or will soon, or there are no others."""
        with self._lock:
            return self._group.size == 1 or self._there == (False, version) or version in self._ahead

    def check(self) -> None:
        """Raises :class:`embodied.errors.RankError` if weights did not arrive that went ahead."""
        if self._last is not None:
            self._last.check()

    def send_ahead(self, tensors: Named, version: int) -> None:
        """Begins to send tensors: :meth:`send` of their version then waits for their arrival alone. They may change as
        soon as this returns."""
        packed = [*self._packed(tensors, kept=True)] if self._beside.here else []
        _finish(packed)
        with self._lock:
            self._ahead[version] = self._last = Beside(partial(self._transfer_ahead, packed), self._last)

    def _transfer_ahead(self, packed: Sequence[Tensor]) -> float:
        if not packed:
            return 0.0
        with on_own_stream(packed[0].device):
            return self._transfer(self._beside, packed)

    def _packed(self, tensors: Named, kept: bool = False) -> Iterator[Tensor]:
        """Yields the buckets, [elements] each. A collective of those that train, if they have shares of the tensors.

        Args:
            kept: in memory of its own. Else it stands until some others are asked for (:class:`Rooms`).
        """
        self._buckets = self._buckets or buckets(tensors, self._dtypes)
        for bucket in self._buckets:
            whole = [_whole(tensors[name]) for name in bucket.names]
            if not self._group.here:
                continue
            if kept:
                yield pack(bucket, whole, whole[0].new_empty(bucket.elements, dtype=bucket.dtype))
            elif len(whole) == 1:
                yield whole[0].to(bucket.dtype).reshape(-1)
            else:
                yield pack(bucket, whole, self._rooms.of(bucket, whole[0]))

    def _transfer(self, group: Group, packed: Iterable[Tensor]) -> float:
        """Sends buckets; returns the seconds that this took."""
        began, stream, sums = time.perf_counter(), Stream(group), list[int]()
        for flat in packed:
            stream.begin(flat)
            if self._checks:
                sums.append(checksum(flat))
        stream.finish()
        if self._checks and group.here:
            group.broadcast(torch.tensor(sums))
        return time.perf_counter() - began

    def take_metrics(self) -> dict[str, float]:
        """Returns bytes and seconds since the last call."""
        found = {
            "rollout/weight_sync_bytes": float(self._bytes), "time/weight_sync_s": self._waited_s,
            "time/weight_transfer_s": self._transfer_s,
        }  # fmt: skip
        self._bytes, self._waited_s, self._transfer_s = 0, 0.0, 0.0
        return found


class Receiver:
    """Receives trained tensors into the parameters of a policy that does not learn.

    Args:
        group, beside, checks, stops: as those of the :class:`Sender`.
    """

    def __init__(
        self, group: Group, beside: Group, policy: Policy, checks: bool, stops: Callable[[], bool] = lambda: False
    ) -> None:
        self._group, self._beside, self._checks, self._stops = group, beside, checks, stops
        parameters = {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}
        self._buckets = buckets(parameters, {name: p.dtype for name, p in parameters.items()})
        self._own = [[parameters[name] for name in bucket.names] for bucket in self._buckets]
        self._rooms = Rooms()
        self._ahead: dict[int, Beside[list[Tensor]]] = {}  # version → its tensors
        self._last: Beside[list[Tensor]] | None = None

    def receive(self) -> int:
        """Receives what was sent; returns the version of the weights. After a stop signal they may be older ones.

        Raises:
            RankError: it does not come.
            RanksDifferError: another arrived than was sent.
        """
        while (heard := self._hear())[0] == LATER:
            if self._last is not None:
                self._last.wait(self._stops)
        kind, version = heard
        if kind == NEW:
            if self._last is not None:
                self._last.wait()
            self._fill(self._group, self._places(), version, self._act)
        elif kind == AHEAD and (transfer := self._ahead.pop(version)).wait(self._stops):
            for bucket, flat, own in zip(self._buckets, transfer.result(), self._own, strict=True):
                unpack(bucket, flat, own)
            _finish(tensor for own in self._own for tensor in own)  # before the memory of others is free
        return version

    def _hear(self) -> tuple[int, int]:
        kind, version, forgot = self._group.broadcast(torch.zeros(3, dtype=torch.int64)).tolist()
        if forgot:
            self._ahead.clear()
        return int(kind), int(version)

    def _places(self) -> Iterator[Tensor]:
        """Yields where each bucket arrives: in the tensor that is alone in it, or in room for a while."""
        for bucket, own in zip(self._buckets, self._own, strict=True):
            alone = len(own) == 1 and own[0].is_contiguous()
            yield own[0].view(-1) if alone else self._rooms.of(bucket, own[0])

    def _act(self, place: int, flat: Tensor) -> None:
        """Copies a bucket that has arrived. The parameters stay where they are: products have other bits elsewhere, and
        other tensors may lie there as well."""
        if flat.data_ptr() != self._own[place][0].data_ptr():
            unpack(self._buckets[place], flat, self._own[place])

    def check(self) -> None:
        """Raises what has become of weights that did not arrive ahead."""
        if self._last is not None:
            self._last.check()

    def receive_ahead(self, version: int) -> None:
        """Begins to receive what :meth:`Sender.send_ahead` sends; :meth:`receive` says when it acts."""
        self._ahead[version] = self._last = Beside(partial(self._arriving, version), self._last)

    def _arriving(self, version: int) -> list[Tensor]:
        if not self._own:
            return []
        with on_own_stream(self._own[0][0].device):
            flats = [own[0].new_empty(b.elements) for b, own in zip(self._buckets, self._own, strict=True)]
            self._fill(self._beside, flats, version)
        return flats

    def _fill(
        self, group: Group, flats: Iterable[Tensor], version: int,
        act: Callable[[int, Tensor], None] = lambda place, flat: None,
    ) -> None:  # fmt: skip
        stream, sums = Stream(group), list[int]()

        def arrived(place: int, flat: Tensor) -> None:
            if self._checks:
                sums.append(checksum(flat))
            act(place, flat)

        for place, flat in enumerate(flats):
            stream.begin(flat, partial(arrived, place, flat))
        stream.finish()
        if self._checks:
            self._compare(sums, group.broadcast(torch.zeros(len(sums), dtype=torch.int64)).tolist(), version)

    def _compare(self, sums: Sequence[int], expected: Sequence[int], version: int) -> None:
        pairs = zip(self._buckets, sums, expected, strict=True)
        if differ := [bucket.names for bucket, own, sent in pairs if own != sent]:
            raise RanksDifferError(
                f"rank {torch.distributed.get_rank()} got other weights of version {version} than rank "
                f"{self._group.members[0]} sent: {len(differ)} of {len(sums)} buckets of tensors differ "
                f"(the first has {', '.join(differ[0][:SHOWN])})",
                "start the run again: it goes on from its last checkpoint. If it comes back, look at the network",
            )


def _whole(tensor: Tensor) -> Tensor:
    """Gathers a tensor of which each process that trains has a part; a collective of these."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _finish(tensors: Iterable[Tensor]) -> None:
    """Waits until a GPU has done what it was told for these tensors: others read them on other streams."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
