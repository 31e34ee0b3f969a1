"""Files of problems: which state of a file was indexed, and what is kept in the cache folder about that state."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from embodied.errors import DatasetError

from ..shared.machine import cache_folder

T = TypeVar("T")
VERSION = "1"  # of what is kept; another number makes all of it anew


@dataclass(frozen=True)
class SourceFile:
    """A file in the state in which it was first seen. Every later access compares size and time of change."""

    path: Path  # absolute
    size: int  # bytes
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> SourceFile:
        """Looks at the file.

        Raises:
            DatasetError: it does not exist, is no file, or is empty.
        """
        remedy = "set env.train.data (or env.eval.data) to a .jsonl, .json, .csv or .parquet file"
        if not path.is_file():
            raise DatasetError(f"no file of problems at {path}" + (" (a folder)" if path.is_dir() else ""), remedy)
        found = path.stat()
        if found.st_size == 0:
            raise DatasetError(f"{path} is empty", remedy)
        return cls(path.absolute(), found.st_size, found.st_mtime_ns)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the file for reading. Raises :class:`DatasetError` if it is not what it was."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise DatasetError(f"{self.path} can no longer be read: {error}", _KEEP) from error
        with file:
            self._compare(os.fstat(file.fileno()))
            yield file

    def check(self) -> None:
        """Raises :class:`DatasetError` if the file is not what it was."""
        with self.open():
            pass

    def _compare(self, now: os.stat_result) -> None:
        if (now.st_size, now.st_mtime_ns) != (self.size, self.mtime_ns):
            raise DatasetError(
                f"{self.path} has changed since its rows were counted: {self.size:,} bytes then, {now.st_size:,} now, "
                f"written {(now.st_mtime_ns - self.mtime_ns) / 1e9:+.3f} s from then",
                _KEEP,
            )


_KEEP = "start again, and leave the file as it is during a run: write a new version into a file of another name"


def kept(file: SourceFile, what: str, make: Callable[[BinaryIO], None], load: Callable[[Path], T]) -> T:
    """Loads something that was worked out from a file; works it out first if that was not done for this state of it.

    What belongs to an earlier state of the file is removed. A damaged file is made again.

    Args:
        what: distinguishes several things about one file; part of the name.
        make: writes it.
        load: reads it. ``OSError``, ``ValueError``, ``EOFError`` or ``KeyError`` mean that it is damaged.

    Raises:
        DatasetError: it cannot be written.
        AssetsMissingError: there is no cache folder that can be written.
    """
    folder = cache_folder("text")
    name, state = _digest(str(file.path)), _digest(VERSION, str(file.size), str(file.mtime_ns))
    target = folder / f"{name}-{state}-{what}"
    if target.exists():
        try:
            return load(target)
        except (OSError, ValueError, EOFError, KeyError):
            target.unlink(missing_ok=True)
    for old in folder.glob(f"{name}-*"):
        if not old.name.startswith(f"{name}-{state}-"):
            old.unlink(missing_ok=True)
    try:
        _write(target, make)
    except OSError as error:
        raise DatasetError(
            f"cannot write the index of {file.path} to {folder}: {error}",
            "free space there, or set XDG_CACHE_HOME to a folder on another disk",
        ) from error
    return load(target)


def _write(target: Path, make: Callable[[BinaryIO], None]) -> None:
    """Writes a file aside and renames it, so that a file with the name is always whole."""
    handle, aside = tempfile.mkstemp(prefix=".", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            make(file)
        os.replace(aside, target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]
