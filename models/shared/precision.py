"""Number formats of the arithmetic."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from .files import FORMATS


def rounding_of(dtype: str, precision: str, of_run: str) -> str:
    """Says what a folder of floating-point weights rounds compared with the run (``Exported.rounding``).

    Args:
        dtype: of the tensors that were written.
        precision: in which the folder is to be computed.
        of_run: in which the run computed.
    """
    return "none" if dtype == "fp32" and precision == of_run else "16 bits"


def number_format(device: torch.device, precision: str) -> torch.autocast:
    """Context of autocast in a number format.

    Args:
        precision: one of :data:`.files.FORMATS`.
    """
    dtype = FORMATS[precision]
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context without autocast. Where there is none it does nothing, and leaves no trace in an exported program."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
