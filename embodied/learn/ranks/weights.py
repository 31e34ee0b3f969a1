"""Gives the weights of the processes that train to those that only collect episodes.

    train ranks: shards, gathered tensor by tensor ─▶ train rank 0 ─▶ buckets, broadcast ─▶ checked ─▶ the policy acts

All build the policy from the same files and compare checksums when they connect, so nothing is sent before it was
changed. What travels is what is trained, in a process group of its own; frozen weights never do. A version says which
weights act: weights that are there already are not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from embodied.errors import RanksDifferError
from embodied.learn.acting import Acting
from embodied.parallel.group import Group
from embodied.parallel.same_weights import SHOWN, checksum
from embodied.protocols import Policy

BUCKET = 2**22  # bytes of small tensors that travel together; a larger one travels as it lies
SAME, NEW = 0, 1
Named = Mapping[str, Tensor]


class Sender:
    """Sends trained tensors. All processes that train make the same calls, the first of them sends.

    Args:
        group: the first process that trains, and those that only collect.
        dtypes: of the tensors where they act, by name.
        checks: checksums are sent, too.
    """

    def __init__(self, group: Group, dtypes: Mapping[str, torch.dtype], checks: bool) -> None:
        self._group, self._dtypes, self._checks = group, dtypes, checks
        self._there: tuple[bool, int] | None = (False, 0)  # what the others have: an average or not, of which version
        self._bytes, self._seconds = 0, 0.0

    def forget(self) -> None:
        """Sends everything the next time: the weights have become others without a new version."""
        self._there = None

    def send(self, tensors: Named, version: int, average: bool = False) -> None:
        """Sends the tensors unless the others have them.

        Args:
            version: optimizer steps that they have seen.
            average: they are the moving average after these steps.
        """
        began, kind = time.perf_counter(), SAME if self._there == (average, version) else NEW
        self._there = average, version
        if self._group.here:
            self._group.broadcast(torch.tensor([kind, version]))
        if kind == NEW:
            sums = [found for names in buckets(tensors, self._dtypes) for found in self._bucket(tensors, names)]
            if self._checks and self._group.here:
                self._group.broadcast(torch.tensor(sums))
        self._seconds += time.perf_counter() - began

    def _bucket(self, tensors: Named, names: Sequence[str]) -> list[int]:
        """Sends some tensors; returns their checksums."""
        whole = [_whole(tensors[name]).to(self._dtypes[name]) for name in names]
        if not self._group.here:
            return []
        flat = torch.cat([one.reshape(-1) for one in whole]) if len(whole) > 1 else whole[0].contiguous()
        self._group.broadcast(flat)
        self._bytes += flat.nbytes
        return [checksum(tensor) for tensor in whole] if self._checks else []

    def take_metrics(self) -> dict[str, float]:
        """Returns bytes and seconds since the last call."""
        found = {"rollout/weight_sync_bytes": float(self._bytes), "time/weight_sync_s": self._seconds}
        self._bytes, self._seconds = 0, 0.0
        return found


class Receiver:
    """Receives trained tensors into the parameters of a policy that does not learn.

    Args:
        group, checks: as those of the :class:`Sender`.
    """

    def __init__(self, group: Group, policy: Policy, checks: bool) -> None:
        self._group, self._checks = group, checks
        self._parameters = {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}

    def receive(self) -> int:
        """Receives what was sent; returns the version of the weights.

        Raises:
            RankError: it does not come.
            RanksDifferError: another arrived than was sent.
        """
        kind, version = self._group.broadcast(torch.zeros(2, dtype=torch.int64)).tolist()
        if kind == NEW:
            dtypes = {name: p.dtype for name, p in self._parameters.items()}
            for names in buckets(self._parameters, dtypes):
                self._fill([self._parameters[name] for name in names])
            if self._checks:
                self._check(version)
        return int(version)

    def _fill(self, parameters: Sequence[Tensor]) -> None:
        if len(parameters) == 1 and parameters[0].is_contiguous():
            self._group.broadcast(parameters[0])
            return
        flat = parameters[0].new_empty(sum(p.numel() for p in parameters))
        self._group.broadcast(flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))

    def _check(self, version: int) -> None:
        sums = self._group.broadcast(torch.zeros(len(self._parameters), dtype=torch.int64)).tolist()
        order = [name for names in buckets(self._parameters, {n: p.dtype for n, p in self._parameters.items()})
                 for name in names]  # fmt: skip
        differ = [n for n, sent in zip(order, sums, strict=True) if checksum(self._parameters[n]) != sent]
        if differ:
            raise RanksDifferError(
                f"rank {torch.distributed.get_rank()} got other weights of version {version} than rank "
                f"{self._group.members[0]} sent: {len(differ)} of {len(sums)} tensors differ "
                f"({', '.join(differ[:SHOWN])})",
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

    def begin(self, iteration: int, version: int) -> None:
        self._own.begin(iteration, version)
        self.version = self._own.version

    def weights(self) -> AbstractContextManager[None]:
        self._sender.send(self._own.trained(), self.version)
        return self._own.weights() if self._acts else nullcontext()

    def evaluates(self, learns: Policy, version: int) -> AbstractContextManager[None]:
        """Context in which the policy that acts, here and elsewhere, has the weights of ``learns``."""
        present = {name: p.detach() for name, p in learns.named_parameters() if p.requires_grad}
        self._sender.send(present, version, self._average)
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


def buckets(tensors: Named, dtypes: Mapping[str, torch.dtype]) -> list[list[str]]:
    """Divides tensors of one format each into broadcasts of at most :data:`BUCKET` bytes, in their order."""
    found: dict[torch.dtype, list[list[str]]] = {}
    filled: dict[torch.dtype, int] = {}
    for name, tensor in tensors.items():
        dtype = dtypes[name]
        size = tensor.numel() * dtype.itemsize
        if dtype not in found or filled[dtype] + size > BUCKET:
            found.setdefault(dtype, []).append([])
            filled[dtype] = 0
        found[dtype][-1].append(name)
        filled[dtype] += size
    return [names for lists in found.values() for names in lists]


def _whole(tensor: Tensor) -> Tensor:
    """Gathers a tensor of which each process that trains has a part; a collective of these."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
