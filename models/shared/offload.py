"""Keeps activations in host memory until the backward pass.

Autograd saves weights, too. ``torch.autograd.graph.save_on_cpu`` would move them, 15 GB a pass with frozen 7B weights,
although they are on the device anyway. Here they stay. With recomputed layers only the layers' inputs move, e.g. 4096
numbers a token and layer. Weights that FSDP gathers for a layer are new tensors and do move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LEAST_BYTES = 1024  # a smaller tensor costs more to move than it frees


@dataclass
class Moved:
    """Counts tensors and bytes that were moved to the host."""

    tensors: int = 0
    bytes: int = 0


@contextmanager
def activations_on_host(module: nn.Module) -> Iterator[Moved]:
    """Context that keeps activations which autograd saves in (pinned) host memory, except parameters and buffers of
    ``module``.

    It comes back when the backward pass asks for it. Copies are queued on the stream of the computation: nothing waits,
    and no tensor is overwritten before it was copied.
    """
    stays = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    moved = Moved()

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        if tensor.nbytes < LEAST_BYTES or tensor.untyped_storage().data_ptr() in stays:
            return tensor
        moved.tensors += 1
        moved.bytes += tensor.nbytes
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)  # strides and all: same kernels
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def unpack(saved: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        device, host = saved
        return host.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield moved
