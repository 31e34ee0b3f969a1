"""Files of rows: which state of a file was indexed, and what is kept in the cache folder about that state."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar
from zipfile import BadZipFile

from embodied.errors import DatasetError
from embodied.lib.cache import cache_folder
from embodied.lib.whole import write_whole

T = TypeVar("T")
_DAMAGED = (OSError, ValueError, EOFError, KeyError, NotImplementedError, BadZipFile, zlib.error)
VERSION = "1"  # version of kept files; a change makes them anew
FOLDER_CHECK_S = 60.0  # a process looks at all files of a folder once in so many seconds


@dataclass(frozen=True)
class SourceFile:
    """A data file with the size and time of change that it had when it was first seen. Every later access
    compares them."""

    path: Path  # absolute
    size: int  # bytes
    mtime_ns: int
    keep: bool = True  # keeps derived files for other processes and later starts

    @classmethod
    def of(cls, path: Path) -> SourceFile:
        """Notes a data file's present size and time of change, with which later accesses compare it.

        Raises:
            DatasetError: it does not exist, is no file, or is empty.
        """
        remedy = "set data.train_data_paths, env.train.data … to .jsonl, .json, .csv or .parquet files that have rows"
        if not path.is_file():
            raise DatasetError(f"no file at {path}" + (" (a folder)" if path.is_dir() else ""), remedy)
        found = path.stat()
        if found.st_size == 0:
            raise DatasetError(f"{path} is empty", remedy)
        return cls(path.absolute(), found.st_size, found.st_mtime_ns)

    @property
    def folder(self) -> Path:
        """Folder from which relative paths in its rows lead."""
        return self.path.parent

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Opens the file for reading. Raises :class:`DatasetError` if it has changed since it was first seen."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise DatasetError(f"{self.path} can no longer be read: {error}", _KEEP) from error
        with file:
            now = os.fstat(file.fileno())
            self._compare(now.st_size, now.st_mtime_ns)
            yield file

    def check(self) -> None:
        """Raises :class:`DatasetError` if the file has changed since it was first seen."""
        with self.open():
            pass

    @property
    def state(self) -> tuple[str, ...]:
        """Values that tell this state of the file from others: size and time of change."""
        return str(self.size), str(self.mtime_ns)

    def _compare(self, size: int, mtime_ns: int) -> None:
        if (size, mtime_ns) != (self.size, self.mtime_ns):
            raise DatasetError(
                f"{self.path} has changed since its rows were counted: {self.size:,} bytes then, {size:,} now, "
                f"written {(mtime_ns - self.mtime_ns) / 1e9:+.3f} s from then",
                _KEEP,
            )


_KEEP = "start again, and leave the file as it is during a run: write a new version into a file of another name"


@dataclass(frozen=True)
class SourceFolder(SourceFile):
    """A folder of data files with the sizes, names and newest time of change that it had when it was first seen. Hidden
    files do not count, nor does the time of change of a folder."""

    names: str = ""  # digest

    @classmethod
    def of(cls, path: Path) -> SourceFolder:
        """Notes the present sizes and times of change of all files of a folder."""
        inside = [(found, found.relative_to(path)) for found in sorted(path.rglob("*")) if found.is_file()]
        shown = [(found, name) for found, name in inside if not any(part.startswith(".") for part in name.parts)]
        states = [found.stat() for found, _ in shown]
        size, changed = sum(one.st_size for one in states), max((one.st_mtime_ns for one in states), default=0)
        return cls(path.absolute(), size, changed, names=_digest(*(str(name) for _, name in shown)))

    @property
    def folder(self) -> Path:
        return self.path

    @property
    def state(self) -> tuple[str, ...]:
        return *super().state, self.names

    def check(self) -> None:
        """Raises :class:`DatasetError` if a file of the folder has changed since it was first seen. Looks every
        :data:`FOLDER_CHECK_S` seconds: rows are read from a copy, and a large folder takes long."""
        now = time.monotonic()
        if now < _next_check.get(self, 0.0):
            return
        found = replace(self.of(self.path), keep=self.keep)
        self._compare(found.size, found.mtime_ns)
        if found != self:
            raise DatasetError(f"files of {self.path} have other names since its rows were counted", _KEEP)
        _next_check[self] = now + FOLDER_CHECK_S


_next_check: dict[SourceFolder, float] = {}  # folder → when to look again, seconds


class SourceName(SourceFile):
    """A data set of the hub, known by its name alone; its rows are read from a local copy, which does not change."""

    @classmethod
    def of(cls, path: Path) -> SourceName:
        """Makes the source of a hub data set's name."""
        return cls(path, 0, 0)

    def check(self) -> None:
        """Does nothing: the copy does not change."""


def cached(file: SourceFile, label: str, make: Callable[[BinaryIO], None], load: Callable[[Path], T]) -> T:
    """Loads a derived file (offsets, a copy) from the cache, and makes it first if there is none for this state of the
    source file.

    What belongs to an earlier state of the file is removed. A damaged file is made again. Of a file that is not to be
    kept, each call works it out, into a temporary file that has no name any more when it is loaded.

    Args:
        label: distinguishes several things about one file; part of the name.
        make: writes it.
        load: reads it. Errors of Python, numpy and zip files (``_DAMAGED``) mean that it is damaged.

    Raises:
        DatasetError: it cannot be written.
        AssetsMissingError: there is no cache folder that can be written.
    """
    if not file.keep:
        return _made(file, make, load)
    folder = cache_folder("text")
    name, state = _digest(str(file.path)), _digest(VERSION, *file.state)
    target = folder / f"{name}-{state}-{label}"
    if target.exists():
        try:
            return load(target)
        except _DAMAGED:
            target.unlink(missing_ok=True)
    for old in folder.glob(f"{name}-*"):
        if not old.name.startswith(f"{name}-{state}-"):
            old.unlink(missing_ok=True)
    try:
        write_whole(target, make, shared=True, mode=0o600)
    except OSError as error:
        raise _cannot_write(file, folder, error, "XDG_CACHE_HOME") from error
    return load(target)


def _made(file: SourceFile, make: Callable[[BinaryIO], None], load: Callable[[Path], T]) -> T:
    with tempfile.TemporaryDirectory(prefix="embodied-rows-") as folder:
        target = Path(folder) / "made"
        try:
            with target.open("wb") as made:
                make(made)
        except OSError as error:
            raise _cannot_write(file, Path(folder), error, "TMPDIR") from error
        return load(target)


def _cannot_write(file: SourceFile, folder: Path, error: OSError, variable: str) -> DatasetError:
    return DatasetError(
        f"cannot write the index of {file.path} to {folder}: {error}",
        f"free space there, or set {variable} to a folder on another disk",
    )


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]
