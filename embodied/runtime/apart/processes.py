"""Starts commands in process groups of their own and ends them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from embodied.lib.child import Child, reap


class Processes:
    """Child processes that run now, each in a process group of its own. Once they are stopped, no other starts."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._processes: set[Child] = set()

    def start(self, command: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> Child | None:
        """Starts a command in a process group of its own, with the import path of this process.

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
            process = Child(command, env=environment, stdout=output, stderr=output)
            self._processes.add(process)
        return process

    def end(self, process: Child) -> None:
        """Kills a process with its group. Its pid is not used again: others may get it."""
        with self._lock:
            if process not in self._processes:
                return
            self._processes.remove(process)
            process.kill()
        reap([process])

    def stop(self) -> None:
        """Kills all commands that run; no other starts."""
        with self._lock:
            self.stopped.set()
            left = [*self._processes]
            self._processes.clear()
            for process in left:
                process.kill()
        reap(left)
