"""Has the report of a run written (``runner.logger.report``): ``<run>/report.html``.

    evaluation ─▶ refresh: python -m embodied.tools.report, a process of its own; the run goes on
    end        ─▶ finish: the last report is waited for

Beside the run that process has the lowest priority. A report that cannot be written is said, and stops nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from embodied.lib.whole import left_aside
from embodied.observe.terminal.console import Console
from embodied.run.folder.beside.beside import Beside
from embodied.run.folder.beside.waiting import wait_for
from embodied.runtime.signals import StopSignal

FILE = "report.html"
"""Its name in the run's folder."""

PROGRAM = (sys.executable, "-m", "embodied.tools.report")
NEEDED = {"vl-convert-python": "vl_convert", "jinja2": "jinja2"}
"""Distribution → module of what the extra ``report`` installs."""

END_S = 120.0  # the first report of a machine bundles the charting library
STOPPED_S = 5.0  # the same after a stop signal, if so much time is granted


class Reports:
    """Writes the HTML report of a run in a child process; only rank 0 does.

    Args:
        folder: the run's.
        wanted: False = nothing is ever written.
    """

    def __init__(self, folder: Path, enabled: bool, console: Console) -> None:
        self._folder, self._console = folder, console
        self._wanted = enabled and all(find_spec(name) is not None for name in NEEDED.values())
        self._missing = enabled and not self._wanted
        self._process: Beside | None = None

    def refresh(self) -> None:
        """Starts writing a new report. If the one before is still being written, the next refresh shows what is new."""
        if self._wanted and not self._running():
            self._begin(behind=True)

    def finish(self, stop: StopSignal) -> None:
        """Writes the last report and waits for it; after a stop signal only for a limited time."""
        if self._missing:
            self._console.say("no report.html: pip install 'embodied-rl[report]', then python -m embodied.tools.report "
                              f"{self._folder}")  # fmt: skip
        if not self._wanted or not stop.grants(STOPPED_S):
            self.close()
            return
        try:
            with self._console.progress("writing the report", brief=True):
                self._begin(behind=False, options=["--ended"])
                self._wait(stop)
        finally:
            self.close()

    def close(self) -> None:
        """Kills the process that writes a report: the report before stays as it is."""
        if self._running():
            assert self._process is not None
            self._process.kill()
            with suppress(OSError):
                for left in left_aside(self._folder / FILE, self._process.pid):
                    left.unlink(missing_ok=True)
        self._process = None

    def _begin(self, behind: bool, options: Sequence[str] = ()) -> None:
        """Starts to write, with what the run has left so far.

        Args:
            behind: other work has the cores first.
            options: of the command.
        """
        self.close()
        try:
            self._process = Beside([*PROGRAM, str(self._folder), *options], behind)
        except OSError as error:
            self._console.say(f"the report was not written: {error}")

    def _running(self) -> bool:
        """Returns whether a report is being written. Says so if the last one failed."""
        if self._process is None:
            return False
        if self._process.runs():
            return True
        failure, self._process = self._process.failure(), None
        if failure:
            self._console.say(f"the report was not written: {failure}")
        return False

    def _wait(self, stop: StopSignal) -> None:
        """Waits for the report that is being written; after a stop signal only as long as may be."""
        began = time.monotonic()
        if not wait_for(lambda: not self._running(), stop, STOPPED_S, END_S):
            self._console.say(f"the report is not ready after {time.monotonic() - began:.3g} s and is left as it was: "
                              f"python -m embodied.tools.report {self._folder} writes it")  # fmt: skip
