"""Trackers of other makers: Weights & Biases, SwanLab, MLflow, Trackio.

    run ─▶ Service ─▶ lines of JSON ─▶ python -m embodied.observe.trackers.service_process ─▶ the maker's package
                   ◀─ what it says  ◀─

Each has a process of its own, so that its threads, signal handlers and waits are not the run's. A service that fails or
hangs is turned off, which is said once. The run goes on, and computes the same numbers.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.lib import hidden
from embodied.lib.child import Child
from embodied.protocols import Cell

SERVICES = ("wandb", "swanlab", "mlflow", "trackio")
"""Names in ``runner.logger.logger_backends``; each is also the name of the package and of our extra."""

FOLDER = "trackers"
"""Folder in the run's folder with the state of each service: ``{"id": …, "done": {name: step}}``."""

PROGRAM = (sys.executable, "-m", "embodied.observe.trackers.service_process")
MOST_WAITING = 1000  # messages that a service has not taken; with more of them it is turned off
LOOK_S = 0.02  # pause between two looks at whether it has ended
PRIORITY = 10  # niceness, so that the run goes first


@dataclass(frozen=True)
class About:
    """Facts on a run that tracking services show: name, project, group, configuration."""

    name: str = "run"
    project: str = "embodied"
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


def check_installed(backends: Sequence[str]) -> None:
    """Raises ConfigError if the package of a service among ``backends`` is missing."""
    for name in backends:
        if name in SERVICES:
            try:
                version(name)
            except PackageNotFoundError:
                raise ConfigError(
                    f"runner.logger.logger_backends has {name}, and the Python package {name} is not installed",
                    f"pip install 'embodied-rl[{name}]' (from a checkout: pip install -e '.[{name}]'), or leave it out",
                ) from None


class Service:
    """A tracking service, whose client runs in a process of its own. No method raises, none waits but :meth:`close`.

    Args:
        name: one of :data:`SERVICES`.
        folder: the run's. The service keeps its state in it, and its log in ``logs/``.
        resumes: go on with the service's run whose id the folder has, else with ``run_id``, else a new one. What was
            sent of a step before is not sent again. False = always a new one.
        say: shows a line to the user.
    """

    def __init__(
        self, name: str, folder: Path, resumes: bool, run_id: str | None, about: About, say: Callable[[str], None]
    ) -> None:
        self._name, self._say = name, say
        self._file = folder.absolute() / FOLDER / f"{name}.json"
        self._log = folder.absolute() / "logs" / f"tracker-{name}.log"
        self._out: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._said: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._process: Child | None = None
        self._reader_done = threading.Event()
        self._ending, self._off = False, False
        kept = _state(self._file) if resumes else {}
        self.run_id: str = kept.get("id") or (run_id if resumes else None) or secrets.token_hex(8)
        facts = asdict(about) | {"config": hidden.in_value("", about.config)}
        given = {"service": name, "folder": str(folder.absolute()), "state": str(self._file), "pid": os.getpid()}
        state = {"id": self.run_id, "done": kept.get("done", {})}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(state), encoding="utf-8")
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as log:
                self._process = Child(
                    PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, priority=PRIORITY,
                    death=None,  # it sends what it has, and ends when its input does
                )  # fmt: skip
        except OSError as error:
            self._turn_off(str(error))
            return
        for target in (self._write, self._read):
            threading.Thread(target=target, args=(self._process,), daemon=True, name=f"tracker {name}").start()
        self._send("begin", given | state | facts)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._send("log", {"step": step, "metrics": {name: float(value) for name, value in metrics.items()}})

    def table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        self._send("table", {"step": step, "name": name, "columns": list(columns), "rows": [list(row) for row in rows]})

    def video(self, step: int, name: str, file: Path) -> None:
        self._send("video", {"step": step, "name": name, "file": str(file.absolute())})

    def end(self) -> None:
        """Tells the service to finish what was logged; :meth:`close` waits for that."""
        self._look()
        if not self._ending:
            self._ending = True
            with suppress(queue.Full):
                self._out.put_nowait(None)

    def close(self, patience: Callable[[float], bool] = lambda waited_s: waited_s < 5.0) -> None:
        """Waits until it has finished, and kills it when ``patience`` of the seconds waited is False."""
        self.end()
        if self._process is None:
            return
        began = time.monotonic()
        while self._process.poll() is None:
            waited = time.monotonic() - began
            if not patience(waited):
                self._look()
                self._turn_off(f"it did not finish in {waited:.3g} s and was ended; what it keeps here stays")
                return
            time.sleep(LOOK_S)
        self._reader_done.wait(1.0)
        self._look()
        self._kill()

    def kill(self) -> None:
        """Kills the client's process at once."""
        self._ending = self._off = True
        self._kill()
        with suppress(queue.Full):
            self._out.put_nowait(None)  # lets its thread end

    def _send(self, what: str, values: Mapping[str, Any]) -> None:
        self._look()
        if self._off or self._ending:
            return
        try:
            self._out.put_nowait(json.dumps({what: values}, default=str))
        except queue.Full:
            self._turn_off(f"it has not taken {MOST_WAITING} messages")

    def _look(self) -> None:
        """Shows what the process has said. Turns the service off if it has failed."""
        while not self._said.empty():
            said = self._said.get()
            if "failed" in said:
                self._turn_off(said["failed"])
            elif not self._off:
                self._say(f"tracker {self._name}: {said['say']}")
        if self._process is None or self._off:
            return
        status = self._process.poll()
        if status is not None and not (self._ending and status == 0):
            self._reader_done.wait(1.0)
            if not self._said.empty():
                return self._look()
            self._turn_off(f"its process ended with status {status}")

    def _turn_off(self, why: str) -> None:
        if not self._off:
            self._off = True
            self._kill()
            with suppress(queue.Full):
                self._out.put_nowait(None)  # lets its thread end
            self._say(f"tracker {self._name} failed and is off; the run goes on: {why} (its log: {self._log})")

    def _kill(self) -> None:
        """Ends its process and what that has started."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _write(self, process: Child) -> None:
        assert process.stdin is not None
        with suppress(OSError, ValueError):
            while (line := self._out.get()) is not None:
                process.stdin.write(f"{line}\n".encode())
                process.stdin.flush()
        with suppress(OSError, ValueError):
            process.stdin.close()

    def _read(self, process: Child) -> None:
        assert process.stdout is not None
        with suppress(OSError, ValueError), process.stdout as said:
            for line in said:
                with suppress(ValueError):
                    self._said.put(json.loads(line))
        self._reader_done.set()


def _state(file: Path) -> dict[str, Any]:
    """What is kept of a service; nothing if that is missing or damaged."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return kept if isinstance(kept["id"], str) and isinstance(kept["done"], dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
