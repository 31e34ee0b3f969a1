"""Measures how fast a device multiplies matrices. The model FLOPs utilisation (MFU) compares training with it."""

from __future__ import annotations

from time import perf_counter
from typing import Literal

import torch

from embodied.protocols import Policy

SIDES = {"cuda": 8192, "cpu": 512}  # side of the square matrices
PRODUCTS = 10  # timed one by one; the fastest counts


def peak_flops(setting: float | Literal["measure"] | None, policy: Policy, device: torch.device) -> float | None:
    """Returns the peak FLOP/s of ``device`` against which MFU is computed: ``setting`` (``runner.peak_tflops``), or
    measured in the number format of ``policy``. None if ``setting`` is."""
    if setting is None:
        return None
    return measure(device, number_format(policy)) if setting == "measure" else setting * 1e12


def number_format(policy: Policy) -> torch.dtype:
    """The number format of most of the parameters. It is that of the arithmetic; trained ones may be float32."""
    sizes: dict[torch.dtype, int] = {}
    for _, parameter in policy.named_parameters():
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def measure(device: torch.device, dtype: torch.dtype, side: int | None = None) -> float:
    """Measures FLOP/s of square matrix products: the fastest of a few, after a first one that is not timed."""
    side = side or SIDES[device.type]
    a = torch.randn(side, side, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    seconds = [_product(a, device) for _ in range(PRODUCTS + 1)]
    return 2 * side**3 / min(seconds[1:])


def _product(a: torch.Tensor, device: torch.device) -> float:
    began = perf_counter()
    torch.mm(a, a)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - began
