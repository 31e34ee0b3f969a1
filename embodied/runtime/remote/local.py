"""Starts simulator hosts as child processes of this machine."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from embodied.errors import WorkerDiedError, WorkerError, WorkerHungError
from embodied.lib.child import Child, how_it_ended, tail
from embodied.parallel.placement.table import NodeSoftware
from embodied.runtime.remote.starter import Address, HostJob, StartedHost


class LocalHost:
    """A host in a child process, which ends with this process."""

    def __init__(self, node: str, address: Address, process: Child, log: Path) -> None:
        self.node, self.address, self._process, self._log = node, address, process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def tail(self) -> str:
        """Returns the end of its log."""
        return tail(self._log)

    def stop(self) -> None:
        """Ends the process. Its workers end with it."""
        self._process.end()


class LocalStarter:
    """Starts hosts of this machine, whatever is to be avoided: there is no other.

    Args:
        start_s: seconds in which a host must listen; it builds no simulator before.
        bind: address of this machine at which hosts listen.
        software: of the hosts; None = that of this process.
    """

    def __init__(self, start_s: float = 60.0, bind: str = "127.0.0.1", software: NodeSoftware | None = None) -> None:
        self._start_s, self._bind = start_s, bind
        self._software = software or NodeSoftware()

    def start(self, index: int, job: HostJob, key: bytes, avoid: AbstractSet[str]) -> StartedHost:
        """Starts a child process. See :class:`embodied.runtime.remote.starter.HostStarter`."""
        log = job.pool.log_dir / "host.log"
        read, write = os.pipe()
        with open(read, encoding="utf-8") as reading:
            try:
                with log.open("ab") as output:
                    command = [
                        self._software.python or sys.executable,
                        "-m",
                        "embodied.runtime.remote.serve",
                        str(write),
                        self._bind,
                    ]
                    process = Child(
                        command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(write,),
                        env={**os.environ, "PYTHONUNBUFFERED": "1", **self._software.variables},
                    )  # fmt: skip
            finally:
                os.close(write)
            try:
                with suppress(BrokenPipeError):
                    assert process.stdin is not None
                    with process.stdin as pipe:
                        pickle.dump((key, job), pipe)
                waiting = select.poll()
                waiting.register(reading, select.POLLIN)
                if not waiting.poll(1000 * self._start_s):
                    raise _late(index, self._start_s, log)
                if not (said := reading.readline().split()):
                    raise _ended(index, process, log)
            except BaseException:
                process.end()
                raise
        return LocalHost("this machine", Address(said[0], int(said[1])), process, log)

    def finish(self) -> None:
        """Does nothing: :meth:`LocalHost.stop` has waited."""


def _ended(index: int, process: Child, log: Path) -> WorkerError:
    how = how_it_ended(process.wait())
    return WorkerDiedError(f"simulator host {index} {how} before it served", f"see {log}", tail(log))


def _late(index: int, seconds: float, log: Path) -> WorkerError:
    message = f"simulator host {index} does not listen after {seconds:g} s"
    return WorkerHungError(message, f"see {log}; the machine may be busy: start fewer hosts", tail(log))
