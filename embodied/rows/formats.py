"""Rows of a file, by number: .jsonl, .csv, .parquet and .json.

A file is read through once, when its index is made; the index is kept in the cache folder, so that a second start and
the other processes begin at once. A process then holds nothing of the file but the index, which is mapped into memory
and shared; of JSON lists alone it holds the whole.

| format | index |
|---|---|
| .jsonl, .csv | bytes at which each record begins and ends, 16 bytes a record |
| .parquet | a copy of the file as Arrow in small batches, because a row group can only be read whole |
| .json | none: the list is read whole |

The package ``datasets`` would do the same for the three formats (it makes such a copy of each). It is not used for
files, because every worker would import it with what belongs to it, which takes seconds, for a hundred lines of index.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from embodied.errors import AssetsMissingError, DatasetError
from embodied.rows.files import SourceFile, cached
from embodied.rows.offsets import record_offsets

Row = Mapping[str, Any]
BOM = b"\xef\xbb\xbf"  # spreadsheets begin UTF-8 files with it
ARROW_ROWS = 1024  # rows of a batch of the copy
_SLICE = 1 << 16  # records whose offsets become Python numbers at a time
_FORMATS = ".jsonl, .json, .csv or .parquet"
csv.field_size_limit(1 << 30)  # bytes of a value, for the whole process; Python's own limit is 131,072


class Rows(Protocol):
    """Interface of a data set: rows by number, from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Row: ...

    def __iter__(self) -> Iterator[Row]: ...


def open_rows(file: SourceFile) -> Rows:
    """Opens a data file as rows; the end of its name says the format.

    Raises:
        DatasetError: the format is not known, or the file is not of its format.
        AssetsMissingError: pyarrow is needed and not installed.
    """
    if (kind := KINDS.get(file.path.suffix.lower())) is None:
        raise DatasetError(
            f"{file.path}: format '{file.path.suffix}' is not known", f"give a file whose name ends in {_FORMATS}"
        )
    return kind(file)


class Records:
    """Byte records of a text file, with random access by their offsets."""

    def __init__(self, file: SourceFile, quoted: bool) -> None:
        self._file = file

        def make(out: BinaryIO) -> None:
            np.save(out, record_offsets(file.path, quoted))

        self._offsets = cached(file, "offsets", make, partial(np.load, mmap_mode="r"))

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, number: int) -> bytes:
        """Reads the bytes of a record."""
        start, stop = self._offsets[number].tolist()
        with self._file.open() as file:
            return os.pread(file.fileno(), stop - start, start)

    def all(self) -> Iterator[bytes]:
        """Yields all records, much faster than one by one."""
        with self._file.open() as file:
            for first in range(0, len(self), _SLICE):
                for start, stop in self._offsets[first : first + _SLICE].tolist():
                    file.seek(start)
                    yield file.read(stop - start)


class JsonLines:
    """Rows of a JSON-lines file: one JSON object a line."""

    def __init__(self, file: SourceFile) -> None:
        self._path, self._records = file.path, Records(file, quoted=False)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> Row:
        return self._parse(number, self._records.read(number))

    def __iter__(self) -> Iterator[Row]:
        for number, record in enumerate(self._records.all()):
            yield self._parse(number, record)

    def _parse(self, number: int, record: bytes) -> Row:
        try:
            return _mapping(json.loads(record), self._path, number)
        except (ValueError, RecursionError) as error:
            raise DatasetError(
                f"{self._path}, row {number} is no JSON: {error}: {record[:80].decode(errors='replace')}",
                "correct the line; a .jsonl file has one JSON object a line (rows are counted from 0)",
            ) from error


class Csv:
    """Rows of a CSV file under a line of column names, as RFC 4180 has them. All values are text."""

    def __init__(self, file: SourceFile) -> None:
        self._path, self._records = file.path, Records(file, quoted=True)
        self._columns = self._cells(0, self._records.read(0).removeprefix(BOM)) if len(self._records) else []
        if twice := [name for name in self._columns if self._columns.count(name) > 1]:
            raise DatasetError(f"{self._path} has two columns '{twice[0]}'", "give each column a name of its own")

    def __len__(self) -> int:
        return max(0, len(self._records) - 1)

    def __getitem__(self, number: int) -> Row:
        return self._row(number, self._records.read(number + 1))

    def __iter__(self) -> Iterator[Row]:
        for number, record in enumerate(self._records.all()):
            if number:
                yield self._row(number - 1, record)

    def _cells(self, line: int, record: bytes) -> list[str]:
        try:
            found = list(csv.reader(io.StringIO(record.decode(), newline="")))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DatasetError(
                f"{self._path}, record {line} is no CSV: {error}",
                "save the file as UTF-8, with a line feed (or carriage return and line feed) behind each record",
            ) from error
        if len(found) > 1 and b'"' not in record:
            raise DatasetError(
                f"{self._path}, record {line} has a carriage return in it: {record[:80].decode(errors='replace')!r}",
                "save the file with a line feed (or carriage return and line feed) behind each record",
            )
        if len(found) > 1:
            raise DatasetError(
                f"{self._path}, record {line} has double quotes inside a value that does not begin with one: "
                f"{record[:80].decode(errors='replace')!r}",
                'put the value in double quotes, and write those within it twice: "5"" pipe"',
            )
        return found[0] if found else []

    def _row(self, number: int, record: bytes) -> Row:
        cells = self._cells(number + 1, record)
        if len(cells) != len(self._columns):
            raise DatasetError(
                f"{self._path}, row {number} has {len(cells)} values, and there are {len(self._columns)} columns: "
                f"{', '.join(self._columns)}",
                "correct the row; a value with a comma, a quote or a line end stands in double quotes",
            )
        return dict(zip(self._columns, cells, strict=True))


class JsonList:
    """Rows of a JSON file that holds a list of objects, which is read whole."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        with file.open() as opened:
            try:
                found = json.load(opened)
            except (ValueError, RecursionError) as error:
                remedy = "correct the file; one with an object on each line is named .jsonl"
                raise DatasetError(f"{file.path} is no JSON: {error}", remedy) from error
        if not isinstance(found, list):
            raise DatasetError(
                f"{file.path} holds a JSON {type(found).__name__}, expected a list of objects",
                'write [{"prompt": …, "answer": …}, …]; a file with one object a line is named .jsonl',
            )
        self._rows = [_mapping(row, file.path, number) for number, row in enumerate(found)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        self._file.check()
        return self._rows[number]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)


class ArrowCopy:
    """Rows of a copy in Arrow's format, which is kept in the cache folder and mapped into memory.

    Args:
        what: distinguishes several copies of one source; part of the copy's name.
        write: writes the copy; called with the package pyarrow at hand.
    """

    def __init__(self, file: SourceFile, what: str, write: Callable[[BinaryIO], None]) -> None:
        try:
            import pyarrow as arrow
            from pyarrow import ipc
        except ImportError as error:
            raise AssetsMissingError(
                f"{file.path} needs the Python package 'pyarrow', which is not installed",
                "pip install 'embodied-rl[data]'",
            ) from error

        def load(path: Path) -> tuple[Any, os.stat_result]:
            return ipc.open_file(arrow.memory_map(str(path))), path.stat()

        self._file = file
        self._copy, state = cached(file, what, write, load)
        self.copy_state = (state.st_size, state.st_mtime_ns)  # changes with a data set on the hub
        sizes = [self._copy.get_batch(i).num_rows for i in range(self._copy.num_record_batches)]
        self._ends = np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> Row:
        self._file.check()
        batch = int(np.searchsorted(self._ends, number, side="right"))
        rows = self._copy.get_batch(batch)
        return rows.slice(number - (int(self._ends[batch]) - rows.num_rows), 1).to_pylist()[0]

    def __iter__(self) -> Iterator[Row]:
        for batch in range(len(self._ends)):
            yield from self._copy.get_batch(batch).to_pylist()


class Parquet(ArrowCopy):
    """Rows of a Parquet file."""

    def __init__(self, file: SourceFile) -> None:
        def write(out: BinaryIO) -> None:
            import pyarrow as arrow
            from pyarrow import ipc, parquet

            try:
                whole = parquet.ParquetFile(file.path)
            except (OSError, arrow.ArrowException) as error:
                raise DatasetError(f"{file.path} is no Parquet file: {error}", "download or write it again") from error
            with whole, ipc.new_file(out, whole.schema_arrow) as copy:
                for batch in _read_batches(file.path, whole):
                    copy.write_batch(batch)

        super().__init__(file, "rows.arrow", write)


def _read_batches(path: Path, whole: Any) -> Iterator[Any]:
    """Yields the batches of a Parquet file. Raises :class:`DatasetError` where it is damaged."""
    import pyarrow as arrow

    batches = whole.iter_batches(ARROW_ROWS)
    while True:
        try:
            batch = next(batches, None)
        except (OSError, arrow.ArrowException) as error:
            raise DatasetError(f"{path} is damaged: {error}", "download or write it again") from error
        if batch is None:
            return
        yield batch


KINDS: Mapping[str, Callable[[SourceFile], Rows]] = {
    ".jsonl": JsonLines, ".ndjson": JsonLines, ".json": JsonList, ".csv": Csv, ".parquet": Parquet,
}  # fmt: skip
"""End of a file's name → its reader."""


def _mapping(value: Any, path: Path, number: int) -> Row:
    if not isinstance(value, dict):
        raise DatasetError(
            f"{path}, row {number} is a {type(value).__name__}, expected an object with a value for each column",
            'write {"prompt": …, "answer": …} (rows are counted from 0)',
        )
    return value
