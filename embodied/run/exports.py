"""Has checkpoints written for other programs (``runner.checkpoint.export_safetensors``): ``<run>/exports/000004/``.

    checkpoint is whole ─▶ python -m embodied.tools.export, a process of its own of the lowest priority; the run goes on
    end of the run      ─▶ the last export is waited for

One is written at a time. Of checkpoints that come meanwhile the newest is next, and the others are left out. The one
that is being read is not deleted, and an exported folder stays as long as its checkpoint. An export that fails is said,
and stops nothing.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from embodied.errors import ConfigError
from embodied.observe.console import Console
from embodied.protocols import Exports, Policy
from embodied.run.beside import Beside
from embodied.runtime.signals import StopSignal

FOLDER = "exports"
"""Its name in the run's folder."""

PROGRAM = (sys.executable, "-m", "embodied.tools.export")
KEY = "runner.checkpoint.export_safetensors"
FORMAT = "hf"
STOPPED_S = 5.0  # that an export may take after a stop signal, if so much time is granted
LOOK_S = 0.05  # between two looks at whether it is ready, or a stop signal has come


class Exporter:
    """The exports of one run; only rank 0 has any. A thread that writes checkpoints may call it.

    Args:
        run: folder of the run.
        wanted: False = nothing is ever exported.

    Raises:
        ConfigError: the policy has no such format.
    """

    def __init__(self, run: Path, wanted: bool, policy: Policy, console: Console) -> None:
        if wanted and not (isinstance(policy, Exports) and FORMAT in policy.export_formats):
            raise ConfigError(
                f"{KEY} is true, and {type(policy).__name__} has no format {FORMAT!r}",
                f"set {KEY}=false, or give it export_formats and export() (embodied.protocols.Exports)",
            )
        self._folder, self._wanted, self._console = run / FOLDER, wanted, console
        self._process: Beside | None = None
        self._source: Path | None = None  # the checkpoint that is being read
        self._next: Path | None = None
        self._lock = threading.Lock()

    def completed(self, checkpoint: Path) -> Collection[Path]:
        """Exports a checkpoint that is whole now; returns those that are being read."""
        if not self._wanted:
            return ()
        with self._lock:
            if self._next is not None:
                self._console.say(f"{self._next} is not exported: the one before was not ready. {_by_hand(self._next)}")
            self._next = checkpoint
            self._look()
            return () if self._source is None else (self._source,)

    def missing(self, checkpoint: Path) -> None:
        """Exports the checkpoint that a run goes on from, unless that was done before."""
        if self._wanted and checkpoint.parent.parent == self._folder.parent and not self._out(checkpoint).exists():
            self.completed(checkpoint)

    def finish(self, stop: StopSignal) -> None:
        """Waits for the exports, after a stop signal only as long as may be."""
        if not self._going_on():
            return
        limit = None
        with self._console.progress("exporting the checkpoint", brief=True):
            while self._going_on():
                if stop.wanted:
                    limit = time.monotonic() + STOPPED_S if limit is None else limit
                    if time.monotonic() >= limit or not stop.grants(0.0):
                        self._console.say(f"the export is not ready. {_by_hand(self._next or self._source)}")
                        break
                time.sleep(LOOK_S)
        self.close()

    def close(self) -> None:
        """Ends an export that goes on, and begins no more of them."""
        with self._lock:
            self._wanted, self._next = False, None
            if self._process is not None:
                self._process.kill()
                assert self._source is not None
                out = self._out(self._source)
                shutil.rmtree(out.with_name(f".{out.name}.part"), ignore_errors=True)
            self._process = self._source = None

    def _going_on(self) -> bool:
        with self._lock:
            self._look()
            return self._process is not None

    def _look(self) -> None:
        """Says how an export has ended, and begins the next one."""
        if self._process is not None and not self._process.runs():
            if failure := self._process.failure():
                self._console.say(f"{self._source} was not exported: {failure}")
            self._process = self._source = None
            self._remove_old()
        if self._process is None and self._next is not None:
            self._source, self._next = self._next, None
            shutil.rmtree(self._out(self._source), ignore_errors=True)  # of a checkpoint that was written again
            try:
                self._process = Beside(_command(self._source, self._out(self._source)), behind=True)
            except OSError as error:
                self._console.say(f"{self._source} was not exported: {error}")
                self._source = None

    def _out(self, checkpoint: Path) -> Path:
        return self._folder / checkpoint.name

    def _remove_old(self) -> None:
        """Removes what was exported from checkpoints that are no longer there."""
        for out in self._folder.glob("[0-9]*"):
            if not (self._folder.with_name("checkpoints") / out.name).exists():
                shutil.rmtree(out, ignore_errors=True)


def _command(checkpoint: Path, out: Path) -> Sequence[str]:
    return [*PROGRAM, str(checkpoint), "--format", FORMAT, "--out", str(out), "--observations", "0"]


def _by_hand(checkpoint: Path | None) -> str:
    return f"To write it: python -m embodied.tools.export {checkpoint} --out FOLDER"
