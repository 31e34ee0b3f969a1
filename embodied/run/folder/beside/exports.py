"""Has checkpoints written for other programs (``runner.checkpoint.export_safetensors``): ``<run>/exports/000004/``.

    checkpoint is whole ─▶ python -m embodied.tools.export, a process of its own of the lowest priority; the run goes on
    export is whole     ─▶ embodied.run.folder.beside.uploads, if it is wanted
    end of the run      ─▶ the last export is waited for, an hour at most

One is written at a time. Of checkpoints that come meanwhile the newest is next, and the others are left out. The one
that is being read is not deleted, and an exported folder stays as long as its checkpoint. An export that fails is said,
and stops nothing.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from embodied.errors import ConfigError
from embodied.observe.terminal.console import Console
from embodied.protocols import Exports, Policy
from embodied.run.folder.beside.beside import NewestNext
from embodied.run.folder.beside.uploads import Uploads
from embodied.run.folder.beside.waiting import wait_for
from embodied.runtime.signals import StopSignal
from embodied.schema import CheckpointConfig

FOLDER = "exports"
"""Its name in the run's folder."""

PROGRAM = (sys.executable, "-m", "embodied.tools.export")
KEY = "runner.checkpoint.export_safetensors"
FORMAT = "hf"
STOPPED_S = 5.0  # time limit for an export after a stop signal, if so much time is granted
LONGEST_S = 3600.0  # time limit for all exports at the end of a run


class Exporter:
    """Exports the checkpoints of a run as they are saved, and uploads them; only rank 0 does. A thread that writes
    checkpoints may call it.

    Args:
        run: folder of the run.
        base: address of the server of the policy that the run's head changes.
        kept: ``export_safetensors`` false = nothing is ever exported.

    Raises:
        ConfigError: the policy has no such format, or a place for uploads cannot be reached from here.
    """

    def __init__(
        self, run: Path, config: CheckpointConfig, policy: Policy, console: Console, base: str | None = None
    ) -> None:
        if config.export_safetensors and not (isinstance(policy, Exports) and FORMAT in policy.export_formats):
            raise ConfigError(
                f"{KEY} is true, and {type(policy).__name__} has no format {FORMAT!r}",
                f"set {KEY}=false, or give it export_formats and export() (embodied.protocols.Exports)",
            )
        self._base = [] if base is None else ["--base", base]
        self._folder, self._wanted, self._console = run / FOLDER, config.export_safetensors, console
        self.uploads = Uploads(run.name, config, console)
        self._queue = NewestNext(self._command, self._ended)

    def completed(self, checkpoint: Path) -> Collection[Path]:
        """Queues the export of a complete checkpoint; returns the checkpoints that exports are reading."""
        if not self._wanted:
            return ()
        if left_out := self._queue.put(checkpoint):
            self._console.say(f"{left_out} is not exported: the one before was not ready. {_by_hand(left_out)}")
        return () if (source := self._queue.source) is None else (source,)

    def missing(self, checkpoint: Path) -> None:
        """Queues the export of the checkpoint that a run resumes from, unless that was done before."""
        if not self._wanted or checkpoint.parent.parent != self._folder.parent:
            return
        if (out := self._out(checkpoint)).exists():
            self.uploads.exported(out)  # handed over again, because nobody knows whether it was uploaded
        else:
            self.completed(checkpoint)

    def finish(self, stop: StopSignal) -> None:
        """Waits for the exports, then for their uploads; after a stop signal only for a limited time."""
        self._queue.hurry()
        if self._queue.goes_on():
            with self._console.progress("exporting the checkpoint", brief=True):
                ready = wait_for(lambda: not self._queue.goes_on(), stop, STOPPED_S, LONGEST_S)
            if not ready and (late := self._queue.next or self._queue.source):
                self._console.say(f"the export is not ready. {_by_hand(late)}")
        self._end()
        self.uploads.finish(stop)

    def close(self) -> None:
        """Ends an export or an upload that goes on, and begins no more of them."""
        self._end()
        self.uploads.close()

    def _end(self) -> None:
        self._wanted = False
        if (source := self._queue.kill()) is not None:
            out = self._out(source)
            shutil.rmtree(out.with_name(f".{out.name}.part"), ignore_errors=True)

    def _command(self, source: Path) -> Sequence[str]:
        out = self._out(source)
        shutil.rmtree(out, ignore_errors=True)  # an export that is there is of an older checkpoint in this place
        return [*PROGRAM, str(source), "--format", FORMAT, "--out", str(out), "--observations", "0", *self._base]

    def _ended(self, source: Path, failure: str) -> None:
        """Says how an export has failed, or has it uploaded."""
        if failure:
            self._console.say(f"{source} was not exported: {failure}")
        else:
            self.uploads.exported(self._out(source))
        self._remove_old()

    def _out(self, checkpoint: Path) -> Path:
        return self._folder / checkpoint.name

    def _remove_old(self) -> None:
        """Removes what was exported from checkpoints that are no longer there, unless it is being uploaded."""
        for out in self._folder.glob("[0-9]*"):
            there = (self._folder.with_name("checkpoints") / out.name).exists()
            if not there and out not in self.uploads.reading:
                shutil.rmtree(out, ignore_errors=True)


def _by_hand(checkpoint: Path) -> str:
    return f"To write it: python -m embodied.tools.export {checkpoint} --out FOLDER"
