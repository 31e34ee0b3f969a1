"""Files of a fixed number of records each. What is written in one is never overwritten while it is needed.

A file has two blocks. The first holds the small fields of all its records, with three checksums each; the second the
large ones, such as pictures. Both are read and written by system calls, not mapped: memory of the process stays flat,
and a full disk is an error instead of a signal. Every record that is read is compared with its checksums.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from embodied.errors import DamagedCheckpointError, RunFolderError
from embodied.lib.whole import sync_folder
from embodied.types import ArraySpec

LARGE = 1024  # bytes from which a field stands in the second block
PAGE = 4096
MOST_OPEN = 256  # files that are open at a time
LARGE_SUM, SUM, CHAIN = "#large", "#sum", "#chain"
"""Checksums of a record's large fields, of its small ones with that number, and of the sums of all records up to it."""
SUMS_AFTER = 8  # bytes of SUM and CHAIN, at the end of the small fields
AGAIN = "restore the folder from a copy, or start anew under another runner.experiment_name"


class Layout:
    """Where the fields of ``per_file`` records stand in a file."""

    def __init__(self, fields: Mapping[str, ArraySpec], per_file: int) -> None:
        self.fields, self.per_file = dict(fields), per_file
        sizes = {name: (np.dtype(spec.dtype), spec.shape) for name, spec in fields.items()}
        small = [(name, *sizes[name]) for name, spec in fields.items() if spec.nbytes < LARGE]
        self.small = np.dtype([*small, (LARGE_SUM, "<u4"), (SUM, "<u4"), (CHAIN, "<u4")])
        self.large = np.dtype([(name, *sizes[name]) for name, spec in fields.items() if spec.nbytes >= LARGE])
        self._second = -(-per_file * self.small.itemsize // PAGE) * PAGE

    @property
    def record_bytes(self) -> int:
        """Bytes of a record on the disk."""
        return self.small.itemsize + self.large.itemsize

    @property
    def file_bytes(self) -> int:
        """Bytes of a file."""
        return self._second + self.per_file * self.large.itemsize

    def disk_bytes(self, records: int) -> int:
        """Bytes of the files of a ring of so many records, which may begin in the midst of one."""
        return (-(-records // self.per_file) + 1) * self.file_bytes

    def place(self, block: np.dtype, within: int) -> int:
        """Where a record begins in one of the two blocks."""
        return within * block.itemsize + (self._second if block is self.large else 0)


class Segments:
    """The files of a folder. File n holds the records from n · ``per_file`` on.

    Raises:
        RunFolderError: the disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder, self.layout = folder, layout
        self._open: dict[int, int] = {}
        self._dirty: set[int] = set()

    def path(self, number: int) -> Path:
        """Path of a file."""
        return self.folder / f"{number:08d}.records"

    def there(self) -> list[int]:
        """Numbers of the files that are there, in order."""
        names = (path.stem for path in self.folder.glob("*.records"))
        return sorted(int(name) for name in names if name.isdigit())

    def held_bytes(self) -> int:
        """Bytes of the files that are there."""
        return len(self.there()) * self.layout.file_bytes

    def whole(self, number: int) -> bool:
        """Whether a file is there with all its bytes."""
        with suppress(OSError):
            return self.path(number).stat().st_size == self.layout.file_bytes
        return False

    def reserve(self, first: int, end: int) -> None:
        """Allocates the files of the records ``first`` … ``end`` - 1: writing them cannot find the disk full."""
        for number in range(first // self.layout.per_file, -(-end // self.layout.per_file)):
            if not self.whole(number):
                self._allocate(number)

    def _allocate(self, number: int) -> None:
        aside = self.folder / f".{number:08d}.part"
        self._close(number)
        try:
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                os.posix_fallocate(descriptor, 0, self.layout.file_bytes)
            finally:
                os.close(descriptor)
            os.replace(aside, self.path(number))
            sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise RunFolderError(
                f"no room for {self.layout.file_bytes / 2**20:.0f} MiB more of replayed records in {self.folder}: "
                f"{error.strerror}",
                "free space on that disk and run the same command again: it goes on from its last checkpoint, whose "
                "records are all there",
            ) from error

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))  # one that is not on the disk yet is opened again
            self._open[number] = os.open(self.path(number), os.O_RDWR | os.O_CLOEXEC)
        return self._open[number]

    def write(self, first: int, records: Mapping[str, np.ndarray], chain: int) -> int:
        """Writes records [n, …] that all belong to one file; returns the chain after them."""
        layout, count = self.layout, len(next(iter(records.values())))
        small, large = np.zeros(count, layout.small), np.zeros(count, layout.large)
        for name in layout.fields:
            (small if name in (small.dtype.names or ()) else large)[name] = records[name]
        bytes_small, bytes_large = _bytes(small), _bytes(large)
        small[LARGE_SUM] = sums_of(bytes_large)
        small[SUM] = small_sums(small)
        for i, own in enumerate(small[SUM].tolist()):
            small[CHAIN][i] = chain = zlib.crc32(own.to_bytes(4, "little"), chain)
        number, within = divmod(first, layout.per_file)
        try:
            descriptor = self._descriptor(number)
            self._dirty.add(number)
            for block, content in ((layout.large, bytes_large), (layout.small, bytes_small)):
                _write(descriptor, content, layout.place(block, within))
        except OSError as error:
            raise RunFolderError(
                f"replayed records cannot be written to {self.path(number)}: {error.strerror}",
                "free space or repair the disk, then run the same command again: it goes on from its last checkpoint",
            ) from error
        return chain

    def read(self, numbers: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads some fields of records by number: [n, …] each.

        Raises:
            DamagedCheckpointError: a file is cut off, or a record is not what was written.
        """
        wanted, layout = list(names), self.layout
        small, large = self._rows(numbers, layout.small), None
        same = small_sums(small) == small[SUM]
        if any(name in (layout.large.names or ()) for name in wanted):
            large = self._rows(numbers, layout.large)
            same &= sums_of(_bytes(large)) == small[LARGE_SUM]
        if not same.all():
            odd = int(numbers[np.flatnonzero(~same)[0]])
            raise DamagedCheckpointError(
                f"record {odd} in {self.path(odd // layout.per_file)} is damaged: its checksum is another", AGAIN
            )
        found = {name: small if name in (small.dtype.names or ()) else large for name in wanted}
        return {name: np.ascontiguousarray(rows[name]) for name, rows in found.items() if rows is not None}

    def _rows(self, numbers: np.ndarray, block: np.dtype) -> np.ndarray:
        rows = np.empty(len(numbers), block)
        content = _bytes(rows)
        for i, number in enumerate(numbers.tolist()):
            file, within = divmod(number, self.layout.per_file)
            self._fill(file, content[i : i + 1], self.layout.place(block, within))
        return rows

    def small_blocks(self, first: int, end: int) -> Iterator[np.ndarray]:
        """Yields the small fields of the records ``first`` … ``end`` - 1, a file at a time."""
        layout = self.layout
        while first < end:
            file, within = divmod(first, layout.per_file)
            rows = np.empty(min(end - first, layout.per_file - within), layout.small)
            self._fill(file, _bytes(rows), layout.place(layout.small, within))
            yield rows
            first += len(rows)

    def _fill(self, file: int, content: np.ndarray, place: int) -> None:
        """Reads bytes [n, b] from a place of a file."""
        view, got = content.data.cast("B"), 0
        while got < len(view):
            read = os.preadv(self._descriptor(file), [view[got:]], place + got)
            if not read:
                raise DamagedCheckpointError(
                    f"{self.path(file)} ends at byte {place + got}, expected {self.layout.file_bytes}",
                    AGAIN,
                )
            got += read

    def sync(self) -> None:
        """Puts what was written onto the disk."""
        for number in sorted(self._dirty):
            os.fdatasync(self._descriptor(number))
        self._dirty.clear()

    def remove(self, number: int) -> None:
        """Deletes a file."""
        self._close(number)
        with suppress(OSError):  # a later call tries again
            self.path(number).unlink(missing_ok=True)

    def _close(self, number: int) -> None:
        self._dirty.discard(number)
        if (descriptor := self._open.pop(number, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Closes all files."""
        for number in [*self._open]:
            self._close(number)


def sums_of(content: np.ndarray) -> np.ndarray:
    """Computes the checksum of each of n rows uint8 [n, b]: uint32 [n]."""
    return np.array([zlib.crc32(row.tobytes()) for row in content], np.uint32)


def small_sums(rows: np.ndarray) -> np.ndarray:
    """Computes what :data:`SUM` must be of n rows of small fields: uint32 [n]."""
    return sums_of(_bytes(rows)[:, :-SUMS_AFTER])


def _bytes(rows: np.ndarray) -> np.ndarray:
    """The bytes of n structured rows: uint8 [n, b], the same memory."""
    return np.ndarray((len(rows), rows.dtype.itemsize), np.uint8, buffer=rows) if rows.nbytes else _none(len(rows))


def _none(count: int) -> np.ndarray:
    return np.zeros((count, 0), np.uint8)


def _write(descriptor: int, content: np.ndarray, place: int) -> None:
    if not content.size:
        return
    view, done = content.data.cast("B"), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], place + done)
