"""Programs that run beside a training: the report's, exports, uploads.

Each has a session of its own, so neither its failure nor a Ctrl-C meant for the run reaches the other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from embodied.lib.child import Child

LOWEST = 19  # priority beside a run


class Beside:
    """A child process that works beside the run, e.g. an export; ``behind``: with the lowest priority.

    Args:
        behind: other work has the cores first.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], behind: bool) -> None:
        priority = LOWEST if behind else None
        self._process = Child(command, kept="stderr", priority=priority, death=None)  # docs/export.md: it then goes on

    @property
    def pid(self) -> int:
        return self._process.pid

    def runs(self) -> bool:
        """Returns whether the program still runs."""
        return self._process.runs()

    def hurry(self) -> None:
        """Raises the process's priority to that of the run, which now waits for it. Only a privileged user may do so;
        else it stays where it is."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self._process.pid, os.getpriority(os.PRIO_PROCESS, 0))

    def wait(self) -> None:
        """Blocks until the process ends."""
        self._process.wait()

    def failure(self) -> str:
        """Returns why the process failed: its error with the fix, or its last lines; empty if it did not fail."""
        status = self._process.wait()
        lines = self._process.lines()
        if status == 0:
            return ""
        errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        said = [line.strip() for line in (lines[errors[-1] :] if errors else lines[-2:])]
        text = " ".join(line for line in said if not line.startswith("kind: ")).removeprefix("error: ")
        return text or f"its process ended with status {status}"

    def kill(self) -> None:
        """Kills the process, and what it has started as well."""
        if self.runs():
            self._process.end()


class NewestNext:
    """Runs one child process after another, each for a folder: after one ends the newest waiting folder is next, older
    ones are left out. They have the lowest priority until :meth:`hurry`. Any thread may call it.

    Args:
        command: makes the command line for a folder, and whatever room it needs.
        ended: is told the folder and why it has failed (empty if it has not), in the thread that sees it first.
    """

    def __init__(self, command: Callable[[Path], Sequence[str]], ended: Callable[[Path, str], None]) -> None:
        self._command, self._ended = command, ended
        self._process: Beside | None = None
        self._lock = threading.RLock()
        self._behind = True
        self.source: Path | None = None  # the folder that it runs for
        self.next: Path | None = None

    def put(self, folder: Path) -> Path | None:
        """Queues a folder; returns the waiting one that it displaces, if any."""
        with self._lock:
            left_out, self.next = self.next, folder
            self.goes_on()
            return left_out

    def hurry(self) -> None:
        """Raises the priority to that of the run, now and for later programs. Call it when the run only waits for it:
        of the lowest priority it may never end where other work takes all cores."""
        with self._lock:
            self._behind = False
            if self._process is not None:
                self._process.hurry()

    def goes_on(self) -> bool:
        """Returns whether a process runs. If it has ended, reports how, and starts the next."""
        with self._lock:
            if self._process is not None and not self._process.runs():
                source, failure = self.source, self._process.failure()
                self._process = self.source = None
                assert source is not None
                self._ended(source, failure)
            while self._process is None and self.next is not None:
                self.source, self.next = self.next, None
                self._begin(self.source)
            return self._process is not None

    def _begin(self, source: Path) -> None:
        try:
            process = self._process = Beside(self._command(source), self._behind)
        except OSError as error:
            self.source = None
            self._ended(source, str(error))
            return
        threading.Thread(target=self._follow, args=(process,), daemon=True).start()

    def _follow(self, process: Beside) -> None:
        """Sees to it that the next one begins when this one ends."""
        process.wait()
        with self._lock:
            if process is self._process:
                self.goes_on()

    def kill(self) -> Path | None:
        """Ends it, and begins no other; returns the folder that it ran for."""
        with self._lock:
            self.next = None
            if self._process is not None:
                self._process.kill()
            source, self._process, self.source = self.source, None, None
            return source
