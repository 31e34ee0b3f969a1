"""Runs code of others in a watched process: with a time limit, and nothing that it starts outlives it.

Imports the standard library alone: it runs before anything else of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

ANSWER, PHASE, ENDED = "answer", "phase", "ended"  # files of the folder that both sides know
LATE = "late"
_LOOK_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36


def supervise(work: Callable[[], str], finish: Callable[[], None], folder: Path, limit_s: float, grace_s: float) -> int:
    """Runs ``work`` in a forked process, and ends that process with all that it has started, also at a SIGTERM: this
    process gets one when its parent dies (``death`` of :class:`embodied.lib.child.Child`).

    Its answer is written as soon as it is known; a thread, a helper or a ``finish`` that hangs cannot keep it.

    Args:
        work: gives the answer.
        finish: tidies up after the answer.
        folder: gets the answer, and how the process ended: its exit status, or :data:`LATE`.
        limit_s: seconds that ``work`` may take.
        grace_s: seconds that ``finish`` may take.

    Returns:
        Exit status of the process that watches.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a helper that turns into a daemon is still found
    signal.signal(signal.SIGTERM, _end_all)
    if (process := os.fork()) == 0:
        _work(work, finish, folder)
    status = _watched(process, folder / ANSWER, limit_s, grace_s)
    _end_descendants()
    write_whole(folder / ENDED, status)
    return 0


def closed(close: Callable[[], None], limit_s: float) -> None:
    """Calls ``close``, which is a user's code, and gives up waiting for it after ``limit_s`` seconds.

    Args:
        limit_s: seconds. Native code that never comes back to Python is not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are handled there alone
        return close()
    before = signal.signal(signal.SIGALRM, _leave)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        close()
    except _Left:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
    return None


class _Left(BaseException):
    """A call took too long. No ``except Exception`` of the callee keeps it."""


def _leave(signum: int, frame: FrameType | None) -> None:
    raise _Left


def write_whole(file: Path, text: str) -> None:
    """Writes a file atomically. (``lib.whole`` is not imported yet: see above.)"""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def _work(work: Callable[[], str], finish: Callable[[], None], folder: Path) -> None:
    """Does the work and leaves, whatever threads there are."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):  # an env may print what the locale does not have
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # standard input is empty: work that asks a terminal finds none
    own, status = os.getpid(), 0
    try:
        answer = work()
        if os.getpid() == own:  # a fork of the work is not it
            write_whole(folder / ANSWER, answer)
            finish()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 (the process ends here)
        import traceback

        traceback.print_exc()
        status = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 255)


def _watched(process: int, answer: Path, limit_s: float, grace_s: float) -> str:
    """Waits for a process; returns its exit status as :mod:`subprocess` has it, or :data:`LATE`."""
    until, answered = time.monotonic() + limit_s, False
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return str(os.waitstatus_to_exitcode(status))
        if not answered and answer.exists():
            answered, until = True, time.monotonic() + grace_s
        if time.monotonic() > until:
            return LATE
        time.sleep(_LOOK_S)


def _end_all(signum: int, frame: FrameType | None) -> None:
    _end_descendants()
    os._exit(128 + signum)


def _end_descendants() -> None:
    """Kills all that descends from this process; what is started meanwhile too."""
    until = time.monotonic() + 10.0  # one that the kernel holds is not waited for
    while time.monotonic() < until:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)  # the children of a killed process become ours
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # the kernel knows of none; /proc may leave some out while others end
            return
        time.sleep(0.001)


def _children() -> list[int]:
    found = []
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in file.read_text(encoding="ascii").split()]
    return found
