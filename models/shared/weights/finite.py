"""Looks for NaN and infinity in weights while they are read: nothing later would say where they came from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from embodied.errors import CheckpointError

FIX = (
    "use an earlier checkpoint, or the original of this one: the numbers were broken when they were saved (a training "
    "that diverged) or on their way here"
)
HEADS = ("embed_tokens.weight", "lm_head.weight")
"""Endings of weights that are never all zero in a network that works. Of other layers zeros are a usual beginning."""


def extremes(tensor: Tensor) -> tuple[float, float] | None:
    """Returns the smallest and the largest number of a tensor, NaN if there is one; None for an empty tensor.

    One pass over the numbers as they are stored: a sum could overflow in 16 bits, and ``isfinite`` writes a second
    tensor.
    """
    if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.numel() == 0 or not tensor.is_floating_point():
        return None
    values = tensor.detach()
    low, high = torch.aminmax(values if values.dtype.itemsize > 1 else values.float())
    return low.item(), high.item()


def check_numbers(tensor: Tensor, name: str, file: Path) -> None:
    """Refuses a tensor with NaN or infinity, and an embedding or head of zeros.

    Raises:
        CheckpointError: a number is NaN or infinite, or all numbers of an embedding or a head are 0.
    """
    found = extremes(tensor)
    if found is None:
        return
    low, high = found
    if not abs(low) < torch.inf or not abs(high) < torch.inf:
        bad = int((~tensor.isfinite()).sum()) if tensor.dtype.itemsize > 1 else int((~tensor.float().isfinite()).sum())
        kind = "NaN" if low != low else "infinite"
        raise CheckpointError(f"{file}: {bad} of the {tensor.numel()} numbers of {name} are {kind}", FIX)
    if low == high == 0 and name.endswith(HEADS) and tensor.ndim == 2:
        raise CheckpointError(f"{file}: all numbers of {name} are 0: it was never filled", FIX)


def check_range(tensor: Tensor, name: str, dtype: torch.dtype) -> None:
    """Raises CheckpointError if finite numbers of a tensor are too large for ``dtype``."""
    found = extremes(tensor)
    largest = 0.0 if found is None else max(abs(end) for end in found)
    if torch.finfo(dtype).max < largest < torch.inf:
        raise CheckpointError(
            f"{name} has numbers up to {largest:g}, too large for {dtype}", "set actor.model.precision=bf16"
        )
