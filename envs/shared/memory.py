"""Returns memory that a simulator no longer uses to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np


def release(array: np.ndarray) -> None:
    """Returns the memory pages of an array to the system; its content is lost and reads as zero."""
    if sys.platform != "linux":
        return
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(mmap.MADV_DONTNEED)
        )
