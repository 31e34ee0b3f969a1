"""The file in which weights travel to an engine: one tensor after the other, each behind a line that describes it.

    4 bytes: length of the line │ JSON: name, dtype, shape, bytes; filled up with blanks │ numbers

A tensor is written as soon as it is made, so that no second copy of all weights exists. Its numbers begin at a multiple
of 64 bytes. Both sides use this file, and it imports the standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

LENGTH = struct.Struct("<I")
ALIGNED = 64


class Writer:
    """Writes tensors into a weights file for the inference engine, from its beginning on.

    Attributes:
        written: name, dtype, shape and checksum of each tensor.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._place = fd, 0
        self.written: list[dict[str, Any]] = []
        os.ftruncate(fd, 0)

    def add(self, name: str, dtype: str, shape: Sequence[int], numbers: memoryview) -> None:
        """Appends a tensor, given as raw bytes.

        Args:
            dtype: as torch names it, e.g. ``bfloat16``.
            numbers: its bytes in row-major order.
        """
        facts = {"name": name, "dtype": dtype, "shape": list(shape)}
        line = json.dumps({**facts, "bytes": numbers.nbytes}).encode()
        line += b" " * (-(self._place + LENGTH.size + len(line)) % ALIGNED)
        self._write(LENGTH.pack(len(line)) + line)
        self._write(numbers)
        self._write(bytes(-self._place % ALIGNED))
        self.written.append({**facts, "checksum": zlib.crc32(numbers)})

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            written = os.pwrite(self._fd, view, self._place)
            self._place, view = self._place + written, view[written:]


def read(path: str) -> Iterator[tuple[dict[str, Any], memoryview]]:
    """Yields each tensor of a weights file: its description as in :attr:`Writer.written`, and its bytes, which are
    mapped from the file and must not be changed. The checksum is of what is read; the launcher compares it with that of
    what it wrote."""
    with open(path, "rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    place = 0
    while place < len(mapped):
        (length,) = LENGTH.unpack_from(mapped, place)
        start = place + LENGTH.size + length
        facts = json.loads(bytes(mapped[place + LENGTH.size : start]))
        end = start + facts.pop("bytes")
        numbers = mapped[start:end]
        yield {**facts, "checksum": zlib.crc32(numbers)}, numbers
        place = end + -end % ALIGNED
