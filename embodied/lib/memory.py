"""Gives memory back to the system."""

from __future__ import annotations

import ctypes
import sys


def trim() -> None:
    """Returns the C heap's free pages to the system. Costs milliseconds; does nothing where the C library
    is not glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))
