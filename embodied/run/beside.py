"""A program that runs beside a training: the report's, an export, an upload.

It has a session of its own, so neither its failure nor a Ctrl-C meant for the run reaches the other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress

LOWEST = 19  # priority beside a run


class Beside:
    """One program, which has been started.

    Args:
        behind: other work has the cores first.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], behind: bool) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._said, start_new_session=True
            )
        except OSError:
            self._said.close()
            raise
        if behind:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST)

    @property
    def pid(self) -> int:
        return self._process.pid

    def runs(self) -> bool:
        """Whether it goes on."""
        return self._process.poll() is None

    def failure(self) -> str:
        """Why it has failed: the last that it said; empty if it has not. Call it once, after its end."""
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        self._said.close()
        if status == 0:
            return ""
        return " ".join(line.strip() for line in lines[-2:]) or f"its process ended with status {status}"

    def kill(self) -> None:
        """Ends it, and what it has started as well."""
        if self.runs():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._said.close()
