"""Returns memory that a simulator no longer uses, or reserves and does not use, to the system."""

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


_IN_USE, _MMAPPED = 0x7, 0x2  # flags in the size that glibc writes before a block
_NORESERVE, _FIXED = 0x4000, 0x10  # flags of mmap that Python does not name, as x86-64 and arm64 have them


def unreserve(address: int, size: int, used: int) -> bool:
    """Makes the system not count what a block of memory reserves beyond its beginning; that part's content is lost.

    Linux promises the memory of a block when it is asked for, and promises it again to each fork, although no page is
    taken before it is written to.

    Args:
        address: that ``malloc`` or the like gave for the block.
        size: bytes that it was asked for.
        used: bytes from the beginning that are kept.

    Returns:
        Whether it was done: glibc gave the block pages of its own.
    """
    if sys.platform != "linux" or not _is_writable(address - 16, size + 16):
        return False
    given = ctypes.c_size_t.from_address(address - 8).value
    if not given & _MMAPPED or not size + 16 <= given & ~_IN_USE < size + 16 + 2 * mmap.PAGESIZE:
        return False
    first = -(-(address + used) // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if last <= first:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | _FIXED
    got = library.mmap(first, last - first, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    return bool(got == first)


def _is_writable(address: int, size: int) -> bool:
    """Whether a range is in private memory of this process that no file backs."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            addresses, permissions, _, _, inode = line.split()[:5]
            first, last = (int(part, 16) for part in addresses.split("-"))
            if first <= address < last:
                return permissions == "rw-p" and inode == "0" and address + size <= last
    return False
