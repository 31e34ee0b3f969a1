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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.errors import RanksDifferError
from embodied.learn.acting import Acting
from embodied.learn.ranks.beside import Beside, on_own_stream
from embodied.learn.ranks.buckets import BUCKET, UNDER_WAY, Bucket, Stream, buckets, pack
from embodied.parallel.group import Group
from embodied.parallel.same_weights import SHOWN, checksum
from embodied.protocols import Policy

SAME, NEW, AHEAD = 0, 1, 2  # the weights that act stay, others follow, others have gone ahead
Named = Mapping[str, Tensor]


class Sender:
    """Sends trained tensors. All processes that train make the same calls, the first of them sends.

    Args:
        group: the first process that trains, and those that only collect.
        beside: the same processes, for what goes ahead.
        dtypes: of the tensors where they act, by name.
        checks: checksums are sent, too.
    """

    def __init__(self, group: Group, beside: Group, dtypes: Mapping[str, torch.dtype], checks: bool) -> None:
        self._group, self._beside, self._dtypes, self._checks = group, beside, dtypes, checks
        self._there: tuple[bool, int] | None = (False, 0)  # what the others have: an average or not, of which version
        self._ahead: dict[int, Beside[float]] = {}  # version → its transfer, and the seconds that this takes
        self._last: Beside[float] | None = None
        self._buckets: list[Bucket] = []
        self._room: dict[torch.dtype, deque[Tensor]] = {}  # in which buckets are packed
        self._bytes, self._seconds = 0, 0.0

    def forget(self) -> None:
        """Sends everything the next time: the weights have become others without a new version."""
        self._there = None
        self._ahead.clear()

    def send(self, tensors: Named, version: int, average: bool = False) -> None:
        """Sends the tensors unless the others have them.

        Args:
            version: optimizer steps that they have seen.
            average: they are the moving average after these steps.

        Raises:
            RankError: another process is gone or late, also while they went ahead.
        """
        began, there = time.perf_counter(), self._there == (average, version)
        kind = SAME if there else AHEAD if not average and version in self._ahead else NEW
        self._there = average, version
        if self._group.here:
            self._group.broadcast(torch.tensor([kind, version]))
        if kind == AHEAD:
            self._seconds += self._ahead.pop(version).result()
        elif kind == NEW:
            self._transfer(self._group, self._packed(tensors))
            self._seconds += time.perf_counter() - began
        if kind != SAME and self._group.here:
            self._bytes += sum(tensor.numel() * self._dtypes[name].itemsize for name, tensor in tensors.items())

    def is_there(self, version: int) -> bool:
        """Returns whether the others have the weights of a version, or will soon."""
        return self._there == (False, version) or version in self._ahead

    def send_ahead(self, tensors: Named, version: int) -> None:
        """Begins to send tensors: :meth:`send` of their version then waits for their arrival alone. They may change as
        soon as this returns."""
        packed = [*self._packed(tensors, kept=True)] if self._beside.here else []
        _finish(packed)
        self._ahead[version] = self._last = Beside(partial(self._transfer_ahead, packed), self._last)

    def _transfer_ahead(self, packed: Sequence[Tensor]) -> float:
        began = time.perf_counter()
        if packed:
            with on_own_stream(packed[0].device):
                self._transfer(self._beside, packed)
        return time.perf_counter() - began

    def _packed(self, tensors: Named, kept: bool = False) -> Iterator[Tensor]:
        """Yields the buckets, [elements] each. A collective of those that train, if they have shares of the tensors.

        Args:
            kept: in memory of its own. Else it stands until :data:`UNDER_WAY` others are asked for.
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
                yield pack(bucket, whole, self._room_like(whole[0], bucket.dtype))

    def _room_like(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns memory for a bucket of small tensors; it is used again after :data:`UNDER_WAY` calls."""
        rooms = self._room.setdefault(dtype, deque())
        if len(rooms) < UNDER_WAY:
            rooms.append(tensor.new_empty(BUCKET // dtype.itemsize, dtype=dtype))
        rooms.rotate()
        return rooms[0]

    def _transfer(self, group: Group, packed: Iterable[Tensor]) -> None:
        stream, sums = Stream(group), list[int]()
        for flat in packed:
            stream.begin(flat)
            if self._checks:
                sums.append(checksum(flat))
        stream.finish()
        if self._checks and group.here:
            group.broadcast(torch.tensor(sums))

    def take_metrics(self) -> dict[str, float]:
        """Returns bytes and seconds since the last call."""
        found = {"rollout/weight_sync_bytes": float(self._bytes), "time/weight_sync_s": self._seconds}
        self._bytes, self._seconds = 0, 0.0
        return found


class Receiver:
    """Receives trained tensors into the parameters of a policy that does not learn. They lie in buckets from then on.

    Args:
        group, beside, checks: as those of the :class:`Sender`.
    """

    def __init__(self, group: Group, beside: Group, policy: Policy, checks: bool) -> None:
        self._group, self._beside, self._checks = group, beside, checks
        parameters = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        self._buckets = buckets(parameters, {name: p.dtype for name, p in parameters.items()})
        self._flats = [_laid_out(bucket, parameters) for bucket in self._buckets]
        self._parameters = {name: p.detach() for name, p in parameters.items()}
        self._ahead: dict[int, Beside[list[Tensor]]] = {}  # version → its tensors
        self._last: Beside[list[Tensor]] | None = None

    def receive(self) -> int:
        """Receives what was sent; returns the version of the weights.

        Raises:
            RankError: it does not come.
            RanksDifferError: another arrived than was sent.
        """
        kind, version = self._group.broadcast(torch.zeros(2, dtype=torch.int64)).tolist()
        if kind == NEW:
            self._fill(self._group, self._flats, version)
        elif kind == AHEAD:
            arrived = self._ahead.pop(version).result()
            for flat, new in zip(self._flats, arrived, strict=True):
                flat.copy_(new)
            _finish(self._flats)  # before the memory of others is free
        return int(version)

    def receive_ahead(self, version: int) -> None:
        """Begins to receive what :meth:`Sender.send_ahead` sends; :meth:`receive` says when it acts."""
        self._ahead[version] = self._last = Beside(partial(self._arriving, version), self._last)

    def _arriving(self, version: int) -> list[Tensor]:
        if not self._flats:
            return []
        with on_own_stream(self._flats[0].device):
            flats = [torch.empty_like(flat) for flat in self._flats]
            self._fill(self._beside, flats, version)
        return flats

    def _fill(self, group: Group, flats: Sequence[Tensor], version: int) -> None:
        stream, sums = Stream(group), list[int]()

        def arrived(flat: Tensor) -> None:
            if self._checks:
                sums.append(checksum(flat))

        for flat in flats:
            stream.begin(flat, partial(arrived, flat))
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


class Sent(Acting):
    """Weights that act in this process, if it collects, and that it sends to those that only collect.

    Args:
        own: chooses the weights.
        acts: this process collects as well.
    """

    def __init__(self, own: Acting, sender: Sender, acts: bool, average: bool) -> None:
        self._own, self._sender, self._acts, self._average = own, sender, acts, average
        super().__init__(own.policy)
        self._present = 0

    def takes(self, iteration: int) -> bool:
        return self._own.takes(iteration)

    def begin(self, iteration: int, version: int) -> None:
        self._own.begin(iteration, version)
        self.version = self._own.version

    def weights(self) -> AbstractContextManager[None]:
        self._sender.send(self._own.trained(), self.version)
        return self._own.weights() if self._acts else nullcontext()

    def send_ahead(self, learns: Policy, version: int) -> None:
        """Sends the weights of ``learns`` ahead."""
        self._sender.send_ahead(_trained(learns), version)

    def evaluates(self, learns: Policy, version: int) -> AbstractContextManager[None]:
        """Context in which the policy that acts, here and elsewhere, has the weights of ``learns``."""
        self._sender.send(_trained(learns), version, self._average)
        return self._own.evaluated()

    def state_dict(self) -> dict[str, Any]:
        return self._own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        self._own.load_state_dict(state, version)
        self.version = self._own.version
        self._sender.forget()


class Received(Acting):
    """The policy of a process that only collects: its trained tensors come from those that train."""

    def __init__(self, policy: Policy, receive: Callable[[], int]) -> None:
        super().__init__(policy)
        self._receive = receive

    def weights(self) -> AbstractContextManager[None]:
        self.version = self._receive()
        return nullcontext()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        self._receive()
        yield


def _trained(policy: Policy) -> Named:
    return {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}


def _whole(tensor: Tensor) -> Tensor:
    """Gathers a tensor of which each process that trains has a part; a collective of these."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _laid_out(bucket: Bucket, parameters: Mapping[str, Tensor]) -> Tensor:
    """Moves parameters into a bucket; returns it. A tensor that is alone there stays where it is."""
    own = [parameters[name] for name in bucket.names]
    if len(own) == 1 and own[0].is_contiguous():
        return own[0].detach().view(-1)
    flat = pack(bucket, [one.detach() for one in own], own[0].detach().new_empty(bucket.elements))
    for parameter, part in zip(own, bucket.parts(flat, own), strict=True):
        parameter.data = part
    return flat


def _finish(tensors: Iterable[Tensor]) -> None:
    """Waits until a GPU has done what it was told for these tensors: others read them on other streams."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
