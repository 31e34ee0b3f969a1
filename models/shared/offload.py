"""Activations wait in host memory for the backward pass.

``torch.autograd.graph.save_on_cpu`` would take the weights along, which autograd saves as well and which are on the
device anyway: with frozen 7B weights 15 GB a pass. Here they stay. With recomputed layers only the layers' inputs are
left to move, 4096 numbers a token and layer. (Weights that FSDP gathers for a layer are new tensors, and do go.)
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
    tensors: int = 0
    bytes: int = 0


@contextmanager
def activations_on_host(module: nn.Module) -> Iterator[Moved]:
    """Within it, what autograd saves is copied to (pinned) host memory, except parameters and buffers of ``module``; it
    comes back when the backward pass asks for it. Copies are queued on the stream of the computation, so nothing waits
    and no tensor is overwritten before it has left."""
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
