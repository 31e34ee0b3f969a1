"""A folder of this machine for what is worked out once and used again."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from embodied.errors import AssetsMissingError

WAIT_S = 60.0  # time limit for another process that makes the same
LOOK_S = 0.1  # pause between two looks at whether it has ended


def cache_folder(name: str) -> Path:
    """Makes ``$XDG_CACHE_HOME`` (else ``~/.cache``) ``/embodied/name``, or a folder in the temporary one if it
    cannot be written. There anybody may have made one before, so one of another user or open to others is not taken:
    compiled code is kept in it.

    Raises:
        AssetsMissingError: neither can be written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shared = Path(tempfile.gettempdir()) / f"embodied-{os.getuid()}"
    roots = (cache / "embodied", shared)
    for root in roots:
        folder = root / name
        try:
            if root == shared:
                shared.mkdir(mode=0o700, exist_ok=True)
                if not _is_ours_alone(shared):
                    continue
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise AssetsMissingError(f"no writable cache folder; tried {', '.join(map(str, roots))}", "set XDG_CACHE_HOME")


def _is_ours_alone(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


@contextmanager
def one_process_first(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Context that lets one of the processes which enter it together work first and fill the cache ``folder``; when it
    leaves or ends, the others go in together and find the result there.

    Nobody waits for longer than ``wait_s`` seconds, or where files cannot be locked.
    """
    with ExitStack() as opened:
        with suppress(OSError):
            _go_in(opened.enter_context((folder / "lock").open("a+", encoding="utf-8")), wait_s)
        yield


def _go_in(lock: IO[str], wait_s: float) -> None:
    """The first one holds the lock alone, the others share it."""
    until, how = time.monotonic() + wait_s, fcntl.LOCK_EX
    while True:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)  # without NB it would wait without a limit
            return
        except BlockingIOError:
            how = fcntl.LOCK_SH
        if time.monotonic() >= until:
            return
        time.sleep(LOOK_S)
