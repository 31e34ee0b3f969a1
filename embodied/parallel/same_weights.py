"""Checks that all ranks hold the same weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embodied.errors import RanksDifferError
from embodied.parallel.group import Group
from embodied.protocols import Policy

SHOWN = 5  # names that an error lists


def check_same_weights(policy: Policy | nn.Module, group: Group, trained_only: bool = False) -> None:
    """Compares the weights of all ranks, which must begin with the same ones and keep them.

    Raises:
        RanksDifferError: weights differ; the message names some of them.
    """
    if group.size == 1:
        return
    own = {n: _checksum(p) for n, p in policy.named_parameters() if p.requires_grad or not trained_only}
    others = group.gather(own)
    differ = [name for name in own if any(other.get(name) != own[name] for other in others)]
    if differ:
        raise RanksDifferError(
            f"the {group.size} processes hold different weights: {len(differ)} of {len(own)} parameters differ "
            f"({', '.join(differ[:SHOWN])})",
            "give every machine the same checkpoint files and the same versions of torch",
        )


def _checksum(parameter: Tensor) -> tuple[int, ...]:
    return (*parameter.shape, checksum(parameter))


def checksum(tensor: Tensor) -> int:
    """Returns the sum of a tensor's bits, read as whole numbers: exact and independent of the order of summation."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.nbytes % 8 == 0:  # twice as fast
        flat = flat if flat.data_ptr() % 8 == 0 and flat.storage_offset() == 0 else flat.clone()
        return int(flat.view(torch.int64).sum().item())
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return int(flat.view(bits).sum(dtype=torch.int64).item())
