"""Small constant tensors, made once per device: a copy from the host at every call would wait for the device, and is
not allowed while a CUDA graph is captured."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Gives ``values`` (nested tuples) as a tensor. Callers must not write to it."""
    with torch.inference_mode(False):  # the first caller may be a rollout, a later one needs gradients
        return torch.tensor(values, dtype=dtype, device=device)
