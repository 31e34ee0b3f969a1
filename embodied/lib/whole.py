"""Writes files that are whole or not there, whatever ends the process or the machine meanwhile."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO


def write_whole(
    path: Path, content: str | bytes | Callable[[BinaryIO], object], *, shared: bool = False, mode: int = 0o666
) -> None:
    """Writes a file atomically: to a temporary name, onto the disk, then renamed. A symbolic link at ``path`` is
    replaced, not followed.

    Args:
        path: in a folder that is there.
        content: text (as UTF-8), bytes, or a function that writes into the open file.
        shared: several processes or threads may write it at the same time: each writes aside under a name of its own.
        mode: of the file, as far as the umask allows.

    Raises:
        OSError: it cannot be written. What was there is intact, and nothing is left aside.
    """
    data = content.encode() if isinstance(content, str) else content
    own = f"{os.getpid()}-{secrets.token_hex(4)}." if shared else ""  # machines that share a folder have equal ids
    aside = path.with_name(f".{path.name}.{own}part")
    try:
        aside.unlink(missing_ok=True)  # of a process that was killed
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            if isinstance(data, bytes):
                file.write(data)
            else:
                data(file)
        settle(aside, path)
    except BaseException:
        with suppress(OSError):  # the folder itself may be none
            aside.unlink(missing_ok=True)
        raise


def left_aside(path: Path, process: int) -> list[Path]:
    """Lists temporary files that a process has left of a file that it writes ``shared``: it was killed, or is still
    writing."""
    return list(path.parent.glob(f".{escape(path.name)}.{process}-*.part"))


def settle(aside: Path, path: Path) -> None:
    """Renames a finished temporary file to its final name, and puts the rename onto the disk."""
    _sync(aside, os.O_RDONLY)
    os.replace(aside, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Puts the names in a folder onto the disk: a rename is there only when its folder is."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that does not know this
            raise
    finally:
        os.close(descriptor)
