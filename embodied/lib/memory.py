"""Gives memory back to the system or keeps it, and says how much a process takes."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT, LARGEST = 1 << 28, 1 << 25
"""Bytes at the end of the heap that are kept, and of the largest piece that is taken from it: glibc's limit."""


def trim() -> None:
    """Returns the C heap's free pages to the system. Costs milliseconds; does nothing where the C library
    is not glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


def keep_freed() -> None:
    """Has the C heap keep what is freed, for a process that takes and frees as much again and again: else the kernel
    empties each page anew, which costs more than what is done with it. Does nothing where the C library is not
    glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, size in ((M_TRIM_THRESHOLD, KEPT), (M_MMAP_THRESHOLD, LARGEST)):
            mallopt(parameter, size)


def own_memory(status: Path = Path("/proc/self/status")) -> int:
    """Returns the bytes of this process that are no pages of files; 0 where the kernel does not say it."""
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
