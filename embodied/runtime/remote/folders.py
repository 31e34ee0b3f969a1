"""Temporary folders of simulator hosts on machines that do not see the run's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = f"embodied-host@{socket.gethostname()}@"  # several machines may see the folder, and no lock of another
UNLOCKED = "embodied-host-without-lock-"  # nobody removes these


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Makes a folder and removes it in the end. It is locked as long as its process lives, if folders can be locked
    here: what a killed process has left, the next call on the machine removes."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            _remove(left, _lock(left))
    folder, lock = _made()
    try:
        yield folder
    finally:
        _remove(folder, lock)


def _made() -> tuple[Path, int | None]:
    """Makes a folder; returns it with its lock's descriptor, None where none can be had."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            return folder, _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process takes it for one that was left
        except OSError:
            folder.rmdir()
            return Path(tempfile.mkdtemp(prefix=UNLOCKED)), None


def _lock(folder: Path) -> int:
    """Locks a folder; returns the lock's descriptor.

    Raises:
        BlockingIOError: another process has it.
        FileNotFoundError: another process has removed it.
        OSError: it cannot be locked.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(folder)):
            raise FileNotFoundError(f"{folder} is another folder now")
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(folder: Path, lock: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)
