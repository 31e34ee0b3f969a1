"""What a person sees of a run: a live bar in a terminal, one line an event elsewhere (log files, CI).

Three displays with the same methods: :class:`TerminalConsole`, :class:`PlainConsole`, and :class:`NullConsole` for
tests and for processes other than the first. Nobody asks which one it got.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Protocol, TextIO

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

Fact = float | str

PLAIN_INTERVAL_S = 30.0
"""A log file gets a line of progress this often; a phase that is shorter gets only its last line."""


class Advance(Protocol):
    """What :meth:`Console.progress` gives to its block."""

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """``n`` more are done. ``facts`` are shown beside the count and stay until they are given again,
        e.g. ``success="12/30", env_steps_per_s=812.0`` → ``success 12/30  env steps per s 812``."""
        ...


class Console(Protocol):
    """The one progress display of a run."""

    def say(self, text: str) -> None:
        """One line or paragraph, as it is."""
        ...

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        """Rows of cells under a title, columns aligned."""
        ...

    def progress(self, phase: str, total: int) -> AbstractContextManager[Advance]:
        """``with console.progress("iteration 3/100 rollout", 64) as bar: bar.advance(1, success="1/1")``."""
        ...

    def iteration(self, summary: Mapping[str, float]) -> None:
        """The line that sums up an iteration: see :func:`summary_line`."""
        ...


def make_console(stream: TextIO | None = None) -> Console:
    """A live display when ``stream`` (standard output) is a terminal, plain lines otherwise."""
    stream = sys.stdout if stream is None else stream
    return TerminalConsole(stream) if stream.isatty() else PlainConsole(stream)


def summary_line(summary: Mapping[str, float]) -> str:
    """One iteration in one line, of what ``summary`` holds: metrics by their names, and ``iteration``, ``iterations``.

    >>> summary_line({"iteration": 3, "iterations": 100, "rollout/success_rate": 0.1875, "rollout/episodes": 64,
    ...               "rollout/zero_advantage_share": 0.5, "train/loss": -0.01234, "time/iteration_s": 41.23})
    'iteration 3/100  success 12/64 (18.8 %)  zero-advantage 50 %  loss -0.0123  41.2 s'
    """
    parts = [text for name, text in _PARTS.items() if name in summary]
    return "  ".join(filter(None, (part(summary) for part in parts)))


_PARTS: dict[str, Callable[[Mapping[str, float]], str]] = {
    "iteration": lambda s: f"iteration {s['iteration']:.0f}" + (f"/{s['iterations']:.0f}" if "iterations" in s else ""),
    "rollout/success_rate": lambda s: "success " + _successes(s, "rollout"),
    "rollout/return_mean": lambda s: f"return {_number(s['rollout/return_mean'])}",
    "rollout/zero_advantage_share": lambda s: f"zero-advantage {_percent(s['rollout/zero_advantage_share'])}",
    "train/loss": lambda s: f"loss {_number(s['train/loss'])}",
    "train/grad_norm": lambda s: f"grad {_number(s['train/grad_norm'])}",
    "sft/loss": lambda s: f"loss {_number(s['sft/loss'])}",
    "sft/val_loss": lambda s: f"held out {_number(s['sft/val_loss'])}",
    "sft/token_accuracy": lambda s: f"tokens {s['sft/token_accuracy']:.1%}".replace("%", " %"),
    "sft/val_token_accuracy": lambda s: f"held out {s['sft/val_token_accuracy']:.1%}".replace("%", " %"),
    "eval/success_rate": lambda s: "eval success " + _successes(s, "eval"),
    "rollout/env_steps_per_s": lambda s: f"{s['rollout/env_steps_per_s']:.0f} env-steps/s",
    "time/policy_share": lambda s: f"policy {_percent(s['time/policy_share'])}",
    "time/env_wait_share": lambda s: f"env wait {_percent(s['time/env_wait_share'])}",
    "time/slot_idle_share": lambda s: f"idle slots {_percent(s['time/slot_idle_share'])}",
    "rollout/worker_restarts": lambda s: (
        f"worker restarts {s['rollout/worker_restarts']:.0f}" if s["rollout/worker_restarts"] else ""
    ),
    "time/iteration_s": lambda s: f"{s['time/iteration_s']:.1f} s",
}
"""Metric → how it is written, in the order of the line."""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


class TerminalConsole:
    """Text scrolls above a bar that is redrawn in place and vanishes with its phase."""

    def __init__(self, stream: TextIO) -> None:
        # Text of a run is data: brackets in an instruction are no markup, and digits need no colour.
        self._rich = RichConsole(file=stream, markup=False, highlight=False)

    def say(self, text: str) -> None:
        self._rich.print(text)

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        table = Table(title=title, title_justify="left", show_header=False)
        for row in rows:
            table.add_row(*(str(cell) for cell in row))
        self._rich.print(table)

    @contextmanager
    def progress(self, phase: str, total: int) -> Iterator[Advance]:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._rich, transient=True) as display:
            yield _Bar(display, display.add_task(phase, total=total, facts=""))

    def iteration(self, summary: Mapping[str, float]) -> None:
        self.say(summary_line(summary))


class _Bar:
    def __init__(self, display: Progress, task: TaskID) -> None:
        self._display, self._task = display, task
        self._facts: dict[str, Fact] = {}

    def advance(self, n: int = 1, **facts: Fact) -> None:
        self._facts |= facts
        self._display.update(self._task, advance=n, facts=_facts(self._facts))


class PlainConsole:
    """One line an event. ``clock`` gives seconds; tests pass their own."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        self._stream, self._clock = stream, clock

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        cells = [[str(cell) for cell in row] for row in rows]
        columns = max(map(len, cells), default=0)
        widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(columns)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip() for row in cells]
        self.say("\n".join([title, *(f"  {line}" for line in lines)]))

    @contextmanager
    def progress(self, phase: str, total: int) -> Iterator[Advance]:
        counter = _Lines(self, phase, total, self._clock)
        try:
            yield counter
        finally:
            counter.show()

    def iteration(self, summary: Mapping[str, float]) -> None:
        self.say(summary_line(summary))


class _Lines:
    def __init__(self, console: PlainConsole, phase: str, total: int, clock: Callable[[], float]) -> None:
        self._console, self._phase, self._total, self._clock = console, phase, total, clock
        self._facts: dict[str, Fact] = {}
        self._done = 0
        self._began = self._shown = clock()

    def advance(self, n: int = 1, **facts: Fact) -> None:
        self._done += n
        self._facts |= facts
        if self._clock() - self._shown >= PLAIN_INTERVAL_S:
            self.show()

    def show(self) -> None:
        self._shown = self._clock()
        facts = _facts(self._facts | {"elapsed": f"{self._shown - self._began:.1f} s"})
        self._console.say(f"{self._phase}: {self._done}/{self._total}  {facts}")


class NullConsole:
    """Says nothing."""

    def say(self, text: str) -> None:
        pass

    def table(self, title: str, rows: Sequence[Sequence[object]]) -> None:
        pass

    @contextmanager
    def progress(self, phase: str, total: int) -> Iterator[Advance]:
        yield _NullBar()

    def iteration(self, summary: Mapping[str, float]) -> None:
        pass


class _NullBar:
    def advance(self, n: int = 1, **facts: Fact) -> None:
        pass


def _successes(summary: Mapping[str, float], side: str) -> str:
    """``12/64 (18.8 %)``, or only the share when the number of episodes is not there."""
    rate = summary[f"{side}/success_rate"]
    share = f"{100 * rate:.1f} %"
    if f"{side}/episodes" not in summary:
        return share
    episodes = round(summary[f"{side}/episodes"])
    return f"{round(rate * episodes)}/{episodes} ({share})"


def _facts(facts: Mapping[str, Fact]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in facts.items())


def _number(value: Fact) -> str:
    """Three significant digits, no exponent where a person would not use one: 0.0123, 1.5, 812, 12345."""
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
