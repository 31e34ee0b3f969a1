"""Runs parts one after another, each in a process of its own, within a time for all of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Literal

from embodied.lib.child import how_it_ended
from embodied.runtime.apart.left import LABEL, end_left
from embodied.runtime.apart.processes import Processes
from embodied.selftest.measured import Measured
from embodied.selftest.parts import Part

Status = Literal["passed", "failed", "not run"]
LEAST_S = 2.0  # no part begins with less time left
LOOK_S = 0.2  # pause between two looks at a part's output
MOST_PRINTED = 16 * 2**20  # bytes of a log, of which then the end is kept
KEPT = 64 * 2**10  # bytes of that end
TAIL = 4000  # characters of it in the result
SAID = 300  # characters of the last line in the reason
MOST_SAID = 2**20  # bytes of what a part has measured
ENVIRONMENT = {"PYTHONFAULTHANDLER": "1", "WORLD_SIZE": "1"}
"""Of parts. A machine of a cluster may say how many processes a job has; parts would wait for the others."""
OTHER_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[^\n\t\x20-\x7e\xa0-\U0010ffff]")
"""Colours and movements of a terminal, and characters that none shows."""


@dataclass(frozen=True)
class Result:
    """The result of a self-test's part: passed, failed or not run, with its measurements."""

    name: str
    status: Status
    reason: str = ""  # why it failed or was not run
    seconds: float = 0.0
    measured: tuple[Measured, ...] = ()
    tail: str = ""  # last output of a part that failed
    left: int = 0  # processes that it had left behind, and that were ended
    command: str = ""  # runs the part alone


@dataclass
class Lines:
    """The lines that a part's child process has written so far (:mod:`embodied.selftest.child`)."""

    measured: list[Measured] = field(default_factory=list)
    not_run: str | None = None
    error: str | None = None
    ended: bool = False
    damaged: str | None = None


class Runner:
    """Runs parts of the self-test on a device, each in a child process.

    Args:
        minutes: for all of them.
        command: runs one of them alone if its name is put behind.
        vllm_python: see :class:`embodied.selftest.place.Place`.
    """

    def __init__(self, device: str, minutes: float, command: Sequence[str], vllm_python: str = "") -> None:
        self._device, self._minutes, self._command = device, minutes, command
        self._vllm_python = vllm_python
        self._until = time.monotonic() + 60 * minutes
        self._processes, self._label = Processes(), uuid.uuid4().hex

    def run_all(self, parts: Sequence[Part], done: Callable[[Result], None]) -> None:
        """Runs parts in order and hands each result to ``done``; after an interrupt also the results of those that were
        not run.

        Raises:
            KeyboardInterrupt: when all is ended and handed over.
        """
        waiting = list(parts)
        try:
            while waiting:
                done(self.run(waiting[0]))
                waiting.pop(0)
        except KeyboardInterrupt:
            for part in waiting:
                done(self._result(part, "not run", "it was interrupted"))
            raise
        finally:
            self._processes.stop()
            end_left(self._label)

    def run(self, part: Part) -> Result:
        """Runs one part in a child process, and ends whatever it has started."""
        left_s = self._until - time.monotonic()
        if left_s < LEAST_S:
            return self._result(part, "not run", f"no time left of {self._minutes:g} minutes")
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="embodied-selftest-", ignore_cleanup_errors=True) as folder:
                found = self._watched(part, Path(folder), min(part.limit_s, left_s), left_s < part.limit_s)
        except OSError as error:  # no room for its files, no process left
            found = {"status": "failed", "reason": f"it could not be run: {error}"}
        return self._result(part, seconds=round(time.monotonic() - began, 1), **found)

    def _watched(self, part: Part, folder: Path, limit_s: float, last: bool) -> dict[str, Any]:
        """Returns fields of the result. ``last``: at the limit the time of all parts is over, too."""
        log, file, own = folder / "log", folder / "lines", folder / "files"
        own.mkdir()
        asked = [part.place, self._device, self._vllm_python, str(own), str(file)]
        child = [sys.executable, "-m", "embodied.selftest.child", *asked]
        process = self._processes.start(child, log, {LABEL: self._label, **ENVIRONMENT})
        if process is None:
            return {"status": "not run", "reason": "it was interrupted"}
        try:
            code = _wait(process, log, limit_s)
        finally:
            self._processes.end(process)
            left = end_left(self._label)
        lines = read(file)
        status, reason = judged(lines, code, limit_s, last)
        tail = _tail(log) if status == "failed" else ""
        if code is not None and code > 0 and tail:  # a crash ends in a stack, an error in its message
            reason += f": {tail.splitlines()[-1][:SAID]}"
        return {"status": status, "reason": reason, "measured": tuple(lines.measured), "tail": tail, "left": left}

    def _result(self, part: Part, status: Status, reason: str = "", **found: Any) -> Result:
        return Result(part.name, status, reason, command=shlex.join([*self._command, part.name]), **found)


def _wait(process: Popen[bytes], log: Path, limit_s: float) -> int | None:
    """Waits for the end of a part and keeps its log short; returns its exit status, None if it goes on."""
    until = time.monotonic() + limit_s
    while (left := until - time.monotonic()) > 0:
        with suppress(TimeoutExpired):
            return process.wait(min(LOOK_S, left))
        if log.stat().st_size > MOST_PRINTED:
            _shorten(log)
    return process.poll()


def _shorten(log: Path) -> None:
    """Keeps the end of a log that goes on: who writes it appends."""
    with log.open("rb+") as file:
        file.seek(-KEPT, os.SEEK_END)
        end = file.read()
        file.truncate(0)
    with log.open("ab") as file:
        file.write(end)


def read(file: Path) -> Lines:
    """Reads the file that a part's child process writes its results into; a last line that was cut off is left out."""
    found = Lines()
    for line in _complete(file):
        try:
            (kind, value), *more = json.loads(line).items()
            if kind == "measured":
                found.measured.append(Measured(**value))
            elif kind == "not_run":
                found.not_run = str(value)
            elif kind == "error":
                found.error = f"{value}; fix: {dict(more)['fix']}"
            elif kind == "ended":
                found.ended = True
        except (ValueError, TypeError, AttributeError, KeyError):
            found.damaged = line[:200]
    return found


def _complete(file: Path) -> Iterator[str]:
    """Yields whole lines, of a file that is too long the first, and then why there are no more."""
    if not file.exists():
        return
    with file.open("rb") as opened:
        *lines, _ = opened.read(MOST_SAID).decode("utf-8", errors="replace").split("\n")
        yield from filter(None, lines)
        if opened.read(1):
            yield f"more than {MOST_SAID:,} bytes"


def judged(lines: Lines, code: int | None, limit_s: float, last: bool) -> tuple[Status, str]:
    """Decides whether a part has passed, failed or was not run, and why.

    Args:
        code: exit status; None = it was ended at its limit.
        last: the limit was the end of the time for all parts.
    """
    wrong = [one for one in lines.measured if not one.holds]
    why = f"{len(wrong)} of {len(lines.measured)} do not hold" if wrong else ""
    if lines.damaged is not None:
        return "failed", f"it wrote what is no result: {lines.damaged}"
    if code is None and last and not wrong:
        return "not run", f"no time left: it was ended after {limit_s:.0f} s of its time"
    if code is None:
        return "failed", "; ".join(filter(None, (f"it did not end within {limit_s:.0f} s", why)))
    if code != 0:
        return "failed", "; ".join(filter(None, (f"it {how_it_ended(code)}", why)))
    if lines.error is not None:
        return "failed", lines.error
    if not lines.ended:
        return "failed", "its process ended with status 0 before the part came to its end"
    if wrong:
        return "failed", why
    if lines.not_run is not None:
        return "not run", lines.not_run
    if not lines.measured:
        return "failed", "it measured nothing"
    if all(one.skipped for one in lines.measured):
        return "not run", "; ".join(f"{one.what}: {one.found}" for one in lines.measured)
    return "passed", ""


def _tail(log: Path) -> str:
    """Returns the end of a log as text that any page and terminal can show."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - KEPT))
        text = OTHER_CHARACTERS.sub("", file.read().decode("utf-8", errors="replace").replace("\r", "\n"))
        return text.strip()[-TAIL:]
    return ""
