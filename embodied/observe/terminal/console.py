"""Shows a run to a person: a live bar in a terminal, one line per event elsewhere (log files, CI).

Three displays with the same methods: :class:`TerminalConsole`, :class:`PlainConsole`, and :class:`NullConsole` for
tests and for processes other than the first. Callers do not ask which one they got. All long work is a phase, and a
phase is never silent for longer than half a minute.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from time import monotonic
from typing import Protocol, TextIO

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from embodied.observe.terminal.panel import Panel, drawn, speed_of_rollout
from embodied.observe.terminal.progress import Phase, duration, shown_number
from embodied.observe.terminal.screen import Look, Screen, Terminal
from embodied.observe.terminal.settings import drawing

PLAIN_INTERVAL_S = 30.0
"""Seconds between two lines of progress in a log file."""


COMMAND = "    "
"""Begins a line that is a command."""


class Console(Protocol):
    """Interface of a run's progress display, of which there is one."""

    def say(self, text: str) -> None:
        """Print one line or paragraph as it is. A line that is indented by four is a command: no line break gets into
        it, so that it can be copied."""
        ...

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        """Print rows of cells under a title, with aligned columns."""
        ...

    def progress(
        self, phase: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> AbstractContextManager[Phase]:
        """Show a phase: ``with console.progress("iteration 3/100 rollout", 64) as bar: bar.advance(1)``.

        Args:
            total: how many there are to do; None = only the time is shown.
            done: how many of them are done already.
            brief: outside a terminal, print nothing for a phase that ends within the interval.
        """
        ...

    def panel(
        self, title: str, look: Look, earlier: Sequence[Mapping[str, float]] = ()
    ) -> AbstractContextManager[None]:
        """Show the newest numbers of a run in a panel while entered; outside a terminal nothing.

        Args:
            look: finds the newest files, e.g. ``{"checkpoint": path}``.
            earlier: rows of metrics from before, oldest first.
        """
        ...

    def iteration(self, summary: Mapping[str, float]) -> None:
        """Print the summary of an iteration (see :func:`summary_line`), and show it in the panel."""
        ...


def make_console(stream: TextIO | None = None) -> Console:
    """A live display when ``stream`` (standard output) is a terminal that moves its cursor, plain lines otherwise."""
    stream = sys.stdout if stream is None else stream
    moves = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return TerminalConsole(stream) if stream.isatty() and moves else PlainConsole(stream)


def summary_line(summary: Mapping[str, float]) -> str:
    """Formats the metrics of an iteration in one line. ``summary`` holds metrics by name, ``iteration`` and
    ``iterations``.

    >>> summary_line({"iteration": 3, "iterations": 100, "rollout/success_rate": 0.1875, "rollout/episodes": 64,
    ...               "rollout/sampled": 1, "rollout/zero_advantage_share": 0.5, "train/loss": -0.01234,
    ...               "time/iteration_s": 41.23})
    'iteration 3/100  success 12/64 (18.8 %, sampled)  zero-advantage 50 %  loss -0.0123  41.2 s'
    """
    parts = [text for name, text in _PARTS.items() if name in summary]
    return "  ".join(filter(None, (part(summary) for part in parts)))


_PARTS: dict[str, Callable[[Mapping[str, float]], str]] = {
    "iteration": lambda s: f"iteration {s['iteration']:.0f}" + (f"/{s['iterations']:.0f}" if "iterations" in s else ""),
    "rollout/success_rate": lambda s: "success " + _successes(s, "rollout"),
    "rollout/return_mean": lambda s: f"return {shown_number(s['rollout/return_mean'])}",
    "rollout/progress_mean": lambda s: f"progress {shown_number(s['rollout/progress_mean'])}",
    "rollout/zero_advantage_share": lambda s: f"zero-advantage {_percent(s['rollout/zero_advantage_share'])}",
    "train/loss": lambda s: f"loss {shown_number(s['train/loss'])}",
    "train/grad_norm": lambda s: f"grad {shown_number(s['train/grad_norm'])}",
    "sft/loss": lambda s: f"loss {shown_number(s['sft/loss'])}",
    "sft/val_loss": lambda s: f"held out {shown_number(s['sft/val_loss'])}",
    "sft/token_accuracy": lambda s: f"tokens {s['sft/token_accuracy']:.1%}".replace("%", " %"),
    "sft/val_token_accuracy": lambda s: f"held out {s['sft/val_token_accuracy']:.1%}".replace("%", " %"),
    "eval/success_rate": lambda s: "eval success " + _successes(s, "eval"),
    "rollout/env_steps_per_s": lambda s: next(speed_of_rollout(s), ""),
    "time/policy_share": lambda s: f"policy {_percent(s['time/policy_share'])}",
    "time/env_wait_share": lambda s: f"env wait {_percent(s['time/env_wait_share'])}",
    "time/slot_idle_share": lambda s: f"idle slots {_percent(s['time/slot_idle_share'])}",
    "rollout/worker_restarts": lambda s: (
        f"worker restarts {s['rollout/worker_restarts']:.0f}" if s["rollout/worker_restarts"] else ""
    ),
    "time/iteration_s": lambda s: f"{s['time/iteration_s']:.1f} s",
    "left_s": lambda s: f"about {duration(s['left_s'])} left" if s["left_s"] > 0 else "",
}
"""Metric → its text, in the order of the line."""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class TerminalConsole(Console):
    """Prints text above a live panel and bars. A bar is redrawn in place and vanishes with its phase."""

    def __init__(self, stream: TextIO) -> None:
        # Text of a run is data: brackets in an instruction are not markup, and digits need no colour.
        self._rich = Terminal(file=stream, markup=False, highlight=False)
        self._display: Progress | None = None  # set while a phase or a panel is open: rich allows one display at a time
        self._panel: Panel | None = None

    def say(self, text: str) -> None:
        for line in text.split("\n"):
            self._rich.print(line, soft_wrap=line.startswith(COMMAND))

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False)
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
        self._rich.print(table)

    @contextmanager
    def progress(self, phase: str, total: int | None = None, done: int = 0, brief: bool = False) -> Iterator[Phase]:
        with self._opened() as display:
            task = display.add_task(phase, total=total, completed=done, text="")

            def changed() -> None:
                text = "  ".join(filter(None, (bar.count, bar.facts, bar.left)))
                display.update(task, completed=bar.share * (total or 0), text=text)

            bar = Phase(phase, total, changed, done=done)
            changed()
            try:
                yield bar
            finally:
                display.refresh()
                display.remove_task(task)

    @contextmanager
    def _opened(self) -> Iterator[Progress]:
        if self._display is not None:
            yield self._display
            return
        try:
            with drawing(self._rich.file), self._bars() as self._display:
                yield self._display
        finally:
            self._display = None

    def _bars(self) -> Progress:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
        )
        return Progress(*columns, console=self._rich, transient=True)

    @contextmanager
    def panel(self, title: str, look: Look, earlier: Sequence[Mapping[str, float]] = ()) -> Iterator[None]:
        if self._display is not None:
            yield
            return
        with ExitStack() as opened:
            opened.enter_context(drawing(self._rich.file))
            try:
                panel, bars = Panel(title, earlier), self._bars()
                opened.enter_context(Screen(self._rich, panel, bars, look))
                self._panel, self._display = panel, bars
            except Exception as error:  # noqa: BLE001 (a display ends no run)
                self.say(f"there is no panel: {type(error).__name__}: {error}; the run goes on")
            try:
                yield
            finally:
                self._panel = self._display = None

    def iteration(self, summary: Mapping[str, float]) -> None:
        if self._panel is not None:
            self._panel.update(summary)
        self.say(summary_line(summary))


class PlainConsole(Console):
    """Prints one line per event, and one every ``interval_s`` for the innermost phase.

    ``clock`` gives seconds; tests pass their own.
    """

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = monotonic, interval_s: float = PLAIN_INTERVAL_S
    ) -> None:
        self._stream, self._clock, self._interval_s = stream, clock, interval_s
        self._open: list[_Lines] = []
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        cells = [[str(cell) for cell in row] for row in rows]
        columns = max(map(len, cells), default=0)
        widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(columns)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip() for row in cells]
        self.say("\n".join([title, *(f"  {line}" for line in lines)]))

    @contextmanager
    def progress(self, phase: str, total: int | None = None, done: int = 0, brief: bool = False) -> Iterator[Phase]:
        lines = _Lines(self, phase, total, done, self._clock, self._interval_s)
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(lines, ended), daemon=True, name="console")
        self._open.append(lines)
        try:
            ticker.start()
            yield lines.phase
        finally:
            ended.set()
            if ticker.ident is not None:  # a signal may have come before its start
                ticker.join()
            self._open.remove(lines)
            if not brief or lines.said:
                lines.show()

    def _tick(self, lines: _Lines, ended: threading.Event) -> None:
        """Prints the state of the phase while nothing changes in it."""
        wait_s = self._interval_s
        while not ended.wait(wait_s):
            innermost = self._open[-1] is lines
            if innermost:
                lines.show_if_due()
            wait_s = max(0.01, self._interval_s - lines.silent_s) if innermost else self._interval_s

    def panel(
        self, title: str, look: Look, earlier: Sequence[Mapping[str, float]] = ()
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def iteration(self, summary: Mapping[str, float]) -> None:
        self.say(summary_line(summary))


class _Lines:
    def __init__(
        self, console: PlainConsole, name: str, total: int | None, done: int, clock: Callable[[], float],
        interval_s: float,
    ) -> None:  # fmt: skip
        self._console, self._clock, self._interval_s = console, clock, interval_s
        self._shown = clock()
        self._lock = threading.Lock()
        self.said = False  # whether a line was printed before the end
        self.phase = Phase(name, total, self.show_if_due, clock, done)

    @property
    def silent_s(self) -> float:
        return self._clock() - self._shown

    def show_if_due(self) -> None:
        with self._lock:
            if self.silent_s >= self._interval_s:
                self.said = True
                self.show()

    def show(self) -> None:
        self._shown = self._clock()
        self._console.say(self.phase.line())


class NullConsole(Console):
    """Prints nothing."""

    def say(self, text: str) -> None:
        pass

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        pass

    @contextmanager
    def progress(self, phase: str, total: int | None = None, done: int = 0, brief: bool = False) -> Iterator[Phase]:
        yield Phase(phase, total, done=done)

    def panel(
        self, title: str, look: Look, earlier: Sequence[Mapping[str, float]] = ()
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def iteration(self, summary: Mapping[str, float]) -> None:
        pass


def _successes(summary: Mapping[str, float], side: str) -> str:
    """``12/64 (18.8 %, sampled)``, or only the share if the number of episodes is unknown."""
    rate = summary[f"{side}/success_rate"]
    share = f"{100 * rate:.1f} %" + drawn(summary, side)
    if f"{side}/episodes" not in summary:
        return share
    episodes = round(summary[f"{side}/episodes"])
    return f"{round(rate * episodes)}/{episodes} ({share})"
