"""Finds where the records of a text file begin and end, at the speed of reading it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embodied.errors import DatasetError

BLOCK = 1 << 24  # bytes that are searched at a time
_NEWLINE, _QUOTE, _BLANKS = 10, 34, (13, 32, 9)


def record_offsets(path: Path, quoted: bool) -> np.ndarray:
    """Returns the first byte of each record and the byte after its last, int64 [n, 2]. A line end belongs to no record,
    and empty lines are left out.

    Args:
        quoted: a record may go over several lines inside double quotes (CSV); a quote within them is written twice.

    Raises:
        DatasetError: a double quote is never closed.
    """
    ends, size, open_quotes = [], 0, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            data = np.frombuffer(block, np.uint8)
            newlines = np.flatnonzero(data == _NEWLINE)
            if quoted:
                quotes = np.flatnonzero(data == _QUOTE)
                newlines = newlines[(np.searchsorted(quotes, newlines) + open_quotes) % 2 == 0]
                open_quotes = (open_quotes + len(quotes)) % 2
            ends.append(newlines + size)
            size += len(block)
    if open_quotes:
        raise DatasetError(
            f"{path}: a double quote is opened and never closed", 'write a quote within quotes twice: ""'
        )
    stops = np.concatenate([*ends, np.array([size], np.int64)])
    found = np.stack([np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1]), stops], axis=1)
    return found[_not_blank(path, found)]


def _not_blank(path: Path, found: np.ndarray) -> np.ndarray:
    """Marks records that are more than a line end, bool [n]. A file from Windows has a carriage return in each line."""
    lengths = found[:, 1] - found[:, 0]
    marked = lengths > 0
    single = np.flatnonzero(lengths == 1)
    if len(single):
        bytes_of = np.memmap(path, np.uint8, "r")
        marked[single] = ~np.isin(bytes_of[found[single, 0]], _BLANKS)
    return marked
