"""Weights on their way to an engine: a file in memory, their number format there, what tells whether they have changed,
and where the policy's own are meanwhile."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError
from embodied.runtime.engine.child.weights_file import Writer
from embodied.runtime.engine.evidence import Described

RUN = 4096  # numbers that are summed at a time


class Weights(Protocol):
    """Interface that moves the policy's own weights off the device while an engine generates, or leaves them there."""

    @property
    def rests(self) -> bool:
        """True if :meth:`rest` takes them off the device."""
        ...

    def rest(self) -> None:
        """Move the weights off the device, if :attr:`rests`. They are not used until :meth:`wake`."""

    def wake(self) -> None:
        """Move the weights back, if they were moved."""


class StayingWeights:
    """Leaves the policy's weights on their device."""

    rests = False

    def rest(self) -> None:
        """Moves nothing."""

    def wake(self) -> None:
        """Moves nothing."""


class WeightsFile:
    """A file in memory that other processes of this user can open while this one lives. It takes memory from
    :meth:`write` to :meth:`empty`."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("embodied.weights")

    @property
    def path(self) -> str:
        """Path under which other processes of this user can open the file."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def write(self, weights: Iterable[tuple[str, Tensor]]) -> Sequence[Described]:
        """Replaces the file's content by these weights; returns name, dtype, shape and checksum of each."""
        writer = Writer(self._fd)
        for name, tensor in weights:
            flat = tensor.detach().contiguous().cpu().reshape(-1)
            numbers = flat.view(torch.uint8).numpy().data
            writer.add(name, str(tensor.dtype).removeprefix("torch."), tensor.shape, numbers)
        return writer.written

    def empty(self) -> None:
        """Frees the memory; the file is empty then."""
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        os.close(self._fd)


def in_format(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Casts weights, one at a time, to the number format in which the engine gets them; None = as they are.

    Raises:
        ConfigError: a number is too large for the format.
    """
    for name, tensor in weights:
        if dtype is None or dtype == tensor.dtype:
            yield name, tensor
            continue
        sent = tensor.to(dtype)
        if (sent.isinf() & tensor.isfinite()).any():
            raise ConfigError(
                f"runner.weight_sync_dtype is {str(dtype).removeprefix('torch.')}, whose largest number is "
                f"{torch.finfo(dtype).max:g}, and {name} has {tensor.abs().max():g}",
                "leave runner.weight_sync_dtype out, or set it to bf16 or fp32",
            )
        yield name, sent


def fingerprint(policy: nn.Module) -> int:
    """Hashes a policy's trained weights, to see whether they have changed. Computed where the weights are: sums of
    their bits, over 4096 numbers at a time."""
    found = 0
    for parameter in policy.parameters():
        if parameter.requires_grad:
            bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[parameter.element_size()]
            flat = parameter.detach().contiguous().view(-1).view(bits)
            whole = len(flat) // RUN * RUN
            sums = flat[:whole].view(-1, RUN).sum(1, dtype=torch.int64)
            rest = flat[whole:].to(torch.int64)
            found = zlib.crc32(torch.cat([sums, rest]).cpu().numpy().tobytes(), found)
    return found
