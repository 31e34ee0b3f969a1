"""The file in which weights travel to an engine: one tensor after the other, each behind a line that describes it.

    4 bytes: length of the line │ JSON: name, dtype, shape, bytes, checksum; filled up with blanks │ numbers

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


class DamagedWeights(Exception):
    """The numbers in the file are not those that were written."""


class Writer:
    """Writes tensors to an open file, from its beginning on.

    Attributes:
        tensors: how many were written.
        checksum: of all of them, in their order.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._place = fd, 0
        self.tensors = self.checksum = 0
        os.ftruncate(fd, 0)

    def add(self, name: str, dtype: str, shape: Sequence[int], numbers: memoryview) -> None:
        """Writes a tensor.

        Args:
            dtype: as torch names it, e.g. ``bfloat16``.
            numbers: its bytes in row-major order.
        """
        own = zlib.crc32(numbers)
        facts = {"name": name, "dtype": dtype, "shape": list(shape), "bytes": numbers.nbytes, "checksum": own}
        line = json.dumps(facts).encode()
        line += b" " * (-(self._place + LENGTH.size + len(line)) % ALIGNED)
        self._write(LENGTH.pack(len(line)) + line)
        self._write(numbers)
        self._write(bytes(-self._place % ALIGNED))
        self.tensors, self.checksum = self.tensors + 1, follow(self.checksum, own)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            written = os.pwrite(self._fd, view, self._place)
            self._place, view = self._place + written, view[written:]


def read(path: str) -> Iterator[tuple[dict[str, Any], memoryview]]:
    """Yields each tensor: its description, and its bytes, which are mapped from the file and must not be changed.

    Raises:
        DamagedWeights: they are not what was written.
    """
    with open(path, "rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    place = 0
    while place < len(mapped):
        (length,) = LENGTH.unpack_from(mapped, place)
        start = place + LENGTH.size + length
        facts = json.loads(bytes(mapped[place + LENGTH.size : start]))
        numbers = mapped[start : start + facts["bytes"]]
        if zlib.crc32(numbers) != facts["checksum"]:
            raise DamagedWeights(f"the checksum of {facts['name']} is another than when it was written")
        yield facts, numbers
        place = start + facts["bytes"] + -(start + facts["bytes"]) % ALIGNED


def follow(before: int, checksum: int) -> int:
    """Returns the checksum of several tensors from that of those before the last, and that of the last."""
    return zlib.crc32(checksum.to_bytes(4, "little"), before)
