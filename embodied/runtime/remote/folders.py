"""Temporary folders of simulator hosts on machines that do not see the run's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "embodied-host-"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Makes a folder and removes it in the end. It is locked as long as its process lives: what a killed process has
    left, the next call on the machine removes."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if (lock := _lock(left)) is not None:
            _remove(left, lock)
    lock = None
    while lock is None:  # another process may take a folder that is not locked yet for one that was left
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(folder)
    try:
        yield folder
    finally:
        _remove(folder, lock)


def _lock(folder: Path) -> int | None:
    """Locks a folder; returns the lock's descriptor, or None if another process has it or has removed it."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(folder)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
