"""Starts the ranks of one machine with the variables that torchrun gives, tells what they print and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from embodied.cluster.events import Ended, Line, Tell
from embodied.lib.child import DRAIN_S, LOG_TAIL, Child, reap
from embodied.parallel.placement.launcher import NODE, VARIABLE, Launcher
from embodied.parallel.placement.table import NODES

TAIL_LINES = 200


@dataclass(frozen=True)
class Order:
    """What a machine is to start.

    Args:
        arguments: of Python, for each rank.
        first: rank of its first process, of which there are ``each``.
        node: place of the machine among those of the run.
        size: ranks of the whole run.
        address: of rank 0's machine, with the port at which the ranks meet.
        folder: that the ranks begin in.
        logs: folder for a log of each rank; "" = they print to this process's terminal, and no event tells it.
        grace_s: time between SIGTERM and SIGKILL when their launcher has gone.
        head: address of the Ray cluster's head; "" = there is none.
        own: address of this machine in the cluster.
        nodes: all machines of the run in words (:data:`embodied.parallel.placement.table.NODES`).
        python: interpreter of the ranks; "" = that of this process.
        variables: of the ranks, beside those of this process.
    """

    arguments: list[str]
    launcher: Launcher
    first: int
    each: int
    node: int
    size: int
    address: str
    port: int
    folder: str
    logs: str = ""
    grace_s: float = 30.0
    head: str = ""
    own: str = ""
    nodes: str = ""
    python: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def environment_of(order: Order, local_rank: int, error_file: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a rank: that of ``base`` with the machine's and torchrun's variables."""
    return {
        **base, "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS") or "1", "PYTHONUNBUFFERED": "1", **order.variables,
        "RANK": str(order.first + local_rank), "LOCAL_RANK": str(local_rank), "GROUP_RANK": str(order.node),
        "WORLD_SIZE": str(order.size), "LOCAL_WORLD_SIZE": str(order.each),
        "MASTER_ADDR": order.address, "MASTER_PORT": str(order.port),
        "TORCHELASTIC_ERROR_FILE": str(error_file), VARIABLE: order.launcher,
        **({"RAY_ADDRESS": order.head, NODE: order.own, NODES: order.nodes} if order.head else {}),
    }  # fmt: skip


def message_of(error_file: Path) -> str:
    """Returns the error that a rank has written for its launcher; empty if it wrote none."""
    with suppress(OSError, ValueError, KeyError):
        return str(json.loads(error_file.read_text(encoding="utf-8"))["message"]["extraInfo"]["py_callstack"])
    return ""


def free_port(address: str) -> int:
    """Returns a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Ranks:
    """The ranks of this machine, which run until they end or :meth:`end`. They die with this process.

    Args:
        tell: gets :class:`Line` and :class:`Ended`, from threads of its own.
    """

    def __init__(self, order: Order, tell: Tell) -> None:
        self._order, self._tell = order, tell
        self._errors = tempfile.TemporaryDirectory(prefix="embodied-ranks-")
        self._children: list[Child] = []
        try:
            for local_rank in range(order.each):
                self._children.append(self._start(local_rank))
        except BaseException:
            self.end()
            raise
        self._watching = [
            threading.Thread(target=self._watch, args=(local_rank,), daemon=True, name=f"rank {local_rank}")
            for local_rank in range(order.each)
        ]
        for thread in self._watching:
            thread.start()

    def _start(self, local_rank: int) -> Child:
        environment = environment_of(self._order, local_rank, self._error_file(local_rank), os.environ)
        out, errors = (subprocess.PIPE, subprocess.STDOUT) if self._order.logs else (None, None)
        command = [self._order.python or sys.executable, *self._order.arguments]
        return Child(command, env=environment, cwd=self._order.folder, stdout=out, stderr=errors)

    def _error_file(self, local_rank: int) -> Path:
        return Path(self._errors.name, f"{local_rank}.json")

    def _watch(self, local_rank: int) -> None:
        child, rank, kept = self._children[local_rank], self._order.first + local_rank, deque[str](maxlen=TAIL_LINES)
        reader = threading.Thread(target=self._read, args=(child.stdout, rank, kept), daemon=True)
        reader.start()
        status = child.wait()
        reader.join(DRAIN_S)  # what it has started may keep its output open
        self._tell(Ended(rank, status, message_of(self._error_file(local_rank)), "\n".join(kept)[-LOG_TAIL:]))

    def _read(self, stream: IO[bytes] | None, rank: int, kept: deque[str]) -> None:
        if stream is None:
            return
        folder = Path(self._order.logs)
        folder.mkdir(parents=True, exist_ok=True)
        with stream, (folder / f"rank-{rank:02d}.log").open("ab") as log:
            for line in stream:
                log.write(line)
                log.flush()
                kept.append(line.decode(errors="replace").rstrip("\n"))
                self._tell(Line(rank, kept[-1]))

    def signal(self, number: int) -> None:
        """Signals the ranks alone, not what they have started."""
        for child in self._children:
            if child.runs():
                child.send_signal(number)

    def end(self, grace_s: float = 0.0) -> None:
        """Ends the ranks, with all that they have started: by SIGTERM if ``grace_s`` is not 0, then by SIGKILL."""
        until = time.monotonic() + grace_s
        if grace_s:
            self.signal(signal.SIGTERM)
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
        for child in self._children:
            child.kill()
        reap(self._children)

    def close(self) -> None:
        """Ends what still runs, and waits until all is told."""
        self.end()
        for thread in getattr(self, "_watching", ()):
            thread.join()
        self._errors.cleanup()
