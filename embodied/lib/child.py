"""Starts programs, keeps the end of what they print, says how they ended, and ends them with all that they started.

    this process ─▶ Python, which asks the kernel for the death signal ─▶ execs the program: the same pid

The kernel sends the death signal when the *thread* ends that started the program. So programs are started by the main
thread, or by one that never ends.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

PR_SET_PDEATHSIG = 1
KEPT = 1 << 16  # bytes of what a program prints, the last ones
LOG_TAIL = 4000  # characters of a log that an error shows
REAP_S = 5.0  # after SIGKILL: a process in the kernel's hands (a disk that does not answer) outlives it
DRAIN_S = 1.0  # after the end, for what is still in the pipe; others that have it open may keep it open

_EXEC = """\
import _signal, ctypes, os, sys
number, parent, report = map(int, sys.argv[1:4])
ctypes.CDLL(None).prctl(1, number, 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != parent:
    os._exit(1)
os.set_inheritable(report, False)
for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):
    _signal.signal(ignored, _signal.SIG_DFL)
with open("/proc/self/environ", "rb") as file:
    variables = dict(each.split(b"=", 1) for each in file.read().split(b"\\0") if b"=" in each)
try:
    os.execvpe(sys.argv[4], sys.argv[4:], variables)
except OSError as error:
    os.write(report, str(error.errno).encode())
os._exit(127)
"""
"""Undoes what Python has changed at its own start: ignored signals, and a locale that it puts into the environment."""


def how_it_ended(code: int, verb: str = "killed") -> str:
    """Explains a return code of :mod:`subprocess` in words; a negative one is a signal.

    >>> how_it_ended(-9), how_it_ended(1)
    ('was killed by SIGKILL', 'ended with status 1')
    """
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was {verb} by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was {verb} by signal {-code}"


def tail(log: Path) -> str:
    """Returns the end of a program's log, for an error that shows it."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4 * LOG_TAIL))  # a character has at most four bytes
        if text := file.read().decode(errors="replace")[-LOG_TAIL:]:
            return text
    return "(its log is empty)"


def end_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when the thread ends that has started it; 0 = to send none.

    Args:
        parent: pid of its parent; if that has ended meanwhile, this process ends at once.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


class Child(subprocess.Popen[bytes]):
    """A child process in a session of its own that ends with this process; its last printed lines can be kept.

    Args:
        command: its arguments; the first is its name or path.
        kept: the stream whose end is kept for :meth:`lines`; errors join a kept ``"stdout"``. It leads to a pipe, or to
            a temporary file if the program lives on: nobody would read the pipe then.
        session: it has a session of its own: no Ctrl-C that is meant for this process reaches it, and :meth:`end` ends
            its whole process group. Else it stays in the group of this process, and :meth:`end` ends it alone.
        death: signal that it gets when this process dies in whatever way; None = it lives on.
        priority: its niceness; None = that of this process.
        how: ``env``, ``cwd``, ``pass_fds`` and streams, as :class:`subprocess.Popen` has them. Streams that are not
            named lead nowhere.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, kept: Literal["", "stdout", "stderr"] = "", session: bool = True,
        death: signal.Signals | None = signal.SIGKILL, priority: int | None = None, **how: Any,
    ) -> None:  # fmt: skip
        self._session, self._killed = session, False
        self._printed, self._reader = bytearray(), None
        self._file = tempfile.TemporaryFile() if kept and death is None else None  # noqa: SIM115 (see lines and end)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        if kept:
            streams |= {"stderr": subprocess.STDOUT, kept: self._file or subprocess.PIPE}
        how = {**streams, "start_new_session": session, **how}
        if death is None:
            self._start(command, how)
        else:
            _by_lasting_thread(lambda: self._start_with_death(command, death, how))
        if priority is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.pid, priority)
        if kept and self._file is None:
            self._reader = threading.Thread(target=self._read, args=(getattr(self, kept),), daemon=True)
            self._reader.start()

    def _start(self, command: Sequence[str], how: dict[str, Any]) -> None:
        try:
            super().__init__(command, **how)
        except BaseException:
            self._close_file()
            raise

    def _start_with_death(self, command: Sequence[str], death: signal.Signals, how: dict[str, Any]) -> None:
        report, theirs = os.pipe()
        with open(report, "rb") as reading:
            try:
                head = [sys.executable, "-I", "-S", "-c", _EXEC, str(int(death)), str(os.getpid()), str(theirs)]
                super().__init__([*head, *command], **{**how, "pass_fds": (*how.get("pass_fds", ()), theirs)})
            finally:
                os.close(theirs)
            self.args = command
            try:
                if error := reading.read():  # ends when the program begins
                    raise OSError(int(error), os.strerror(int(error)), command[0])
            except BaseException:
                self.end()
                for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
                    stream.close()
                raise

    def _read(self, stream: IO[bytes]) -> None:
        """Reads on, so that the program never waits for a reader."""
        with suppress(OSError, ValueError), stream:
            while more := os.read(stream.fileno(), KEPT):
                self._printed += more
                del self._printed[:-KEPT]

    def runs(self) -> bool:
        return self.poll() is None

    def lines(self) -> list[str]:
        """Returns the last lines that it has printed to the kept stream, once it has ended."""
        if self._reader is not None:
            self._reader.join(DRAIN_S)
        self._close_file()
        return bytes(self._printed).decode(errors="replace").strip().splitlines()

    def _close_file(self) -> None:
        """Keeps the end of a temporary file."""
        if self._file is not None:
            with self._file as file:
                size = os.fstat(file.fileno()).st_size
                self._printed += os.pread(file.fileno(), KEPT, max(0, size - KEPT))
            self._file = None

    def end(self, grace_s: float = 0.0) -> None:
        """Ends it, with its group: by SIGTERM if it has ``grace_s`` seconds for that, then by SIGKILL. What a signal
        does not end is left."""
        if grace_s and self.runs():
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        self.kill()
        reap([self])
        self._close_file()

    def kill(self) -> None:
        """Kills it, with its group, and does not wait for the end. Only the first call does: others may get the pid."""
        if not self._killed:
            self._killed = True
            self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Signals the group also when the program itself has ended: what it has started may live on."""
        if self._session:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        else:
            self.send_signal(number)


def reap(children: Sequence[Child]) -> None:
    """Waits for programs that were killed, for a limited time."""
    until = time.monotonic() + REAP_S
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))


class _Starter(threading.Thread):
    """Starts programs for threads that may end before them."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="programs")
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            self.calls.get()()


_starters: list[_Starter] = []
_lock = threading.Lock()


def _by_lasting_thread(start: Callable[[], None]) -> None:
    if threading.current_thread() is threading.main_thread():
        return start()
    started, failed = threading.Event(), list[BaseException]()

    def call() -> None:
        try:
            start()
        except BaseException as error:  # noqa: BLE001 (raised by who has called)
            failed.append(error)
        started.set()

    with _lock:
        if not _starters:
            _starters.append(_Starter())
    _starters[0].calls.put(call)
    started.wait()
    if failed:
        raise failed[0]


def _forget_thread() -> None:
    """In a fork there is no such thread, and another may have held the lock."""
    global _lock
    _starters.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)
