"""The ``.pt`` files that OFT writes beside the weights: state dicts, with DDP's prefix if several GPUs wrote them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from embodied.errors import CheckpointError


def read_pt(file: Path) -> dict[str, Tensor]:
    """Tensors by name without ``module.``, mapped from the file; no code in it is run.

    Raises:
        CheckpointError: the file is damaged or holds other things than tensors.
    """
    try:
        values = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return {name.removeprefix("module."): tensor for name, tensor in values.items()}
    except Exception as error:  # a cut file raises whatever its reader stumbles over
        raise CheckpointError(f"{file} is damaged: {error}", "download or copy it again") from error
