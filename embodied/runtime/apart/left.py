"""Finds the processes that carry a label in their environment, which children inherit, and ends them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LABEL = "EMBODIED_APART"
"""Variable that holds the label. Nothing but this file reads it."""
END_S = 1.0  # longest wait for a killed process to be gone
ROUNDS = 5  # searches at most: a process may have started others before it was killed


def end_left(label: str) -> int:
    """Kills every process of this user whose environment carries the label; returns how many there were. Those that
    have cleared their environment are not found."""
    ended = set[int]()
    for _ in range(ROUNDS):
        found = {pid for pid in _pids() if _kill(pid, label)}
        ended |= found
        if not found:
            break
    return len(ended)


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def _kill(pid: int, label: str) -> bool:
    """Kills a process if it carries the label. The descriptor makes sure that it is the one that was looked at."""
    with suppress(OSError):
        opened = os.pidfd_open(pid)
        try:
            if not _carries(pid, label):
                return False
            signal.pidfd_send_signal(opened, signal.SIGKILL)
            _await_end(opened)
            return True
        finally:
            os.close(opened)
    return False


def _await_end(opened: int) -> None:
    """Waits until a killed process is gone; not for ever, as one in the kernel's hands outlives the signal."""
    poll = select.poll()  # select() takes no descriptor from 1024 on
    poll.register(opened, select.POLLIN)
    poll.poll(1000 * END_S)


def _carries(pid: int, label: str) -> bool:
    """Returns whether a process carries the label. One that waits to be reaped has no environment, so it does not."""
    return f"{LABEL}={label}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
