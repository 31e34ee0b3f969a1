"""Threads that exchange with other processes beside what a process does, and how a process leaves while one still does.

At its end Python stops such a thread where it is: within torch the process is then aborted (SIGABRT), and its launcher
takes that for a failure.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from weakref import WeakSet

ENDS_S = 2.0  # seconds that a process waits for them at its end
_begun: WeakSet[threading.Thread] = WeakSet()


def begin(thread: threading.Thread) -> None:
    """Starts a thread that exchanges."""
    _begun.add(thread)
    thread.start()


def under_way() -> bool:
    """Returns whether such a thread runs."""
    return any(thread.is_alive() for thread in [*_begun])


def finish() -> bool:
    """Waits for these threads, :data:`ENDS_S` at most; returns whether all have ended."""
    until = time.monotonic() + ENDS_S
    for thread in [*_begun]:
        thread.join(max(0.0, until - time.monotonic()))
    return not under_way()


def leave(status: int) -> None:
    """Ends this process at once, with its exit status, if such a thread runs."""
    if not under_way():
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
