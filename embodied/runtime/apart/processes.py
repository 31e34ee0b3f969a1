"""Starts commands in process groups of their own and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

REAP_S = 5.0  # after SIGKILL


class Processes:
    """The commands that run now. Once they are stopped, no other starts."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()

    def start(
        self, command: Sequence[str], log: Path, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes] | None:
        """Starts a command in a group of its own, which imports from where this process does.

        Args:
            log: gets what it prints, at its end: it may be cut meanwhile.
            more: variables of its environment.

        Returns:
            None if the commands were stopped.
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}
        with self._lock, log.open("ab") as output:
            if self.stopped.is_set():
                return None
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
            self._processes.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a process with its group. Its pid is not used again: others may get it."""
        with self._lock:
            if process not in self._processes:
                return
            self._processes.remove(process)
            _kill(process)
        _reap([process])

    def stop(self) -> None:
        """Kills all that run."""
        with self._lock:
            self.stopped.set()
            left = [*self._processes]
            self._processes.clear()
            for process in left:
                _kill(process)
        _reap(left)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _reap(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits for killed processes. One in the kernel's hands (a disk that does not answer) outlives the signal."""
    until = time.monotonic() + REAP_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
