"""Runs checks side by side. One that raises, crashes or hangs is a finding, and keeps no other from its own."""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embodied.doctor.findings import Finding, of_error
from embodied.errors import EmbodiedError
from embodied.lib.child import how_it_ended
from embodied.runtime.apart.processes import Processes

LIMIT_S = 60.0


@dataclass(frozen=True)
class Check:
    """A check of the doctor: a function that yields findings, and how it is run."""

    name: str
    function: Callable[..., Iterable[Finding]]
    arguments: tuple[Any, ...] = ()  # a check that runs apart gets them as JSON
    apart: bool = False  # runs in a process of its own, because its imports may crash
    limit_s: float = LIMIT_S
    cpu_s: float = 0.0  # about what it takes: the longest begins first, so that none is left alone at the end
    advisory: bool = False  # nothing that was asked for needs it: what fails is a warning

    @property
    def place(self) -> str:
        return f"{self.function.__module__}:{self.function.__name__}"

    @property
    def command(self) -> list[str]:
        """The command that runs the check alone, in a process of its own."""
        return [sys.executable, "-m", "embodied.doctor.child", self.place, json.dumps(self.arguments)]


def run_all(checks: Sequence[Check], done: Callable[[str], None] = lambda name: None) -> list[Finding]:
    """Runs checks, as many at once as there are cores (at least two); returns their findings in the checks' order.

    Args:
        done: called with the name of each check that has ended.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    found: list[list[Finding]] = [[] for _ in checks]
    running = Processes()
    slowest_first = sorted(range(len(checks)), key=lambda number: (not checks[number].apart, -checks[number].cpu_s))
    for number in slowest_first:
        waiting.put(number)

    def work() -> None:
        while not running.stopped.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                found[number] = _findings(checks[number], running)
            finally:
                ended.put(number)

    at_once = max(2, len(os.sched_getaffinity(0)))
    try:
        for _ in range(min(at_once, len(checks))):
            threading.Thread(target=work, daemon=True).start()
        for _ in checks:
            done(checks[ended.get()].name)
    finally:
        running.stop()
    return [finding for one in found for finding in one]


def _findings(check: Check, running: Processes) -> list[Finding]:
    """What a check finds, or why it could not be run: no room for its files, no process left."""
    try:
        said = _apart(check, running) if check.apart else _here(check)
    except Exception as error:  # noqa: BLE001 (a check that cannot be run is a finding)
        said = [_failed(check, f"{type(error).__name__}: {error}")]
    return [_advised(finding) for finding in said] if check.advisory else said


def _advised(finding: Finding) -> Finding:
    return replace(finding, status="warn") if finding.status == "fail" else finding


def _here(check: Check) -> list[Finding]:
    """Runs a check in a thread: that of a disk which does not answer cannot be ended, and is left."""
    found: list[Finding] = []
    ended = threading.Event()

    def work() -> None:
        try:
            for finding in check.function(*check.arguments):
                found.append(finding)
        except EmbodiedError as error:
            found.append(of_error(check.name, error))
        except Exception as error:  # noqa: BLE001 (a check that raises is a finding)
            found.append(_failed(check, f"{type(error).__name__}: {error}"))
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    if not ended.wait(check.limit_s):
        return [*found, _hung(check)]
    return found


def _apart(check: Check, running: Processes) -> list[Finding]:
    """Runs a check in a process of its own; ends it with all that it has started."""
    with tempfile.TemporaryDirectory() as folder:
        answers, log = Path(folder) / "findings", Path(folder) / "log"
        process = running.start([*check.command, str(answers)], log)
        if process is None:
            return []
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(check.limit_s)
        finally:
            running.end(process)
        found = [Finding(**json.loads(line)) for line in _lines(answers) if line.endswith("}")]
        if code is None:
            return [*found, _hung(check)]
        if code != 0:
            errors = [line for line in _lines(log) if line.strip()]
            return [*found, _failed(check, f"it {how_it_ended(code)}: {errors[-1] if errors else 'no word'}")]
        return found


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []


def _failed(check: Check, said: str) -> Finding:
    return Finding(check.name, "fail", f"this check failed: {said}", _alone(check))


def _hung(check: Check) -> Finding:
    return Finding(check.name, "fail", f"this check did not end within {check.limit_s:g} s", _alone(check))


def _alone(check: Check) -> str:
    if not check.apart:
        return "see whether the disks and /proc of this machine answer: df; ls /proc/self"
    return f"see all that it says: {shlex.join(check.command)}"
