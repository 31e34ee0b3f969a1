"""What is checked before a folder of replayed records is used, and before records are appended to it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from embodied.errors import RunFolderError, SpecMismatchError
from embodied.learn.replay.header import ELSEWHERE
from embodied.types import ArraySpec


def made(folder: Path) -> None:
    """Makes a folder. Raises :class:`RunFolderError` if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be made: {error.strerror}", ELSEWHERE) from error


def check_room(folder: Path, wanted: int, there: int, capacity: int) -> None:
    """Raises :class:`RunFolderError` unless the disk has room.

    Args:
        wanted: bytes.
        there: bytes of them that are written.
        capacity: records that they hold, for the message.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize + there
    if free < wanted:
        raise RunFolderError(
            f"the replay of {capacity} records needs {wanted / 1e9:.2f} GB in {folder}, and {free / 1e9:.2f} GB are "
            "free",
            f"set algorithm.replay.max_gb below {0.9 * free / 1e9:.2f}, free space, or set algorithm.replay.path to a "
            "folder of another disk",
        )


def locked(folder: Path) -> int:
    """Takes the folder for this process; returns the descriptor that holds it. It ends with the process.

    Raises:
        RunFolderError: another process has it.
    """
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise RunFolderError(
            f"another process writes the replayed records in {folder}",
            f"wait until it has ended, or {ELSEWHERE}",
        ) from error
    except OSError:  # a file system without locks
        return lock
    return lock


def checked(records: Mapping[str, np.ndarray], fields: Mapping[str, ArraySpec]) -> int:
    """Checks records [n, …] and returns n.

    Raises:
        SpecMismatchError: fields, shapes or dtypes are others than ``fields``.
    """
    if set(records) != set(fields):
        odd = sorted(set(records) ^ set(fields))
        raise SpecMismatchError(
            f"records have the fields {', '.join(sorted(records))}, and the replay's differ in {', '.join(odd)}",
            "append every field that the replay was opened with, and no other",
        )
    count = len(next(iter(records.values())))
    for name, spec in fields.items():
        got = records[name]
        if got.shape != (count, *spec.shape) or got.dtype != np.dtype(spec.dtype):
            raise SpecMismatchError(
                f"field {name} of {count} records is {got.dtype} {list(got.shape)}, expected {spec.dtype} "
                f"{[count, *spec.shape]}",
                f"append {name} as the replay was opened with it",
            )
    return count
