"""What a terminal shows of a run while it goes on: the newest numbers, and how success went over the iterations.

It shows what was measured, under the names of ``docs/metrics.md`` or made of these; what a run has not is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from time import monotonic, time

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel as Frame
from rich.segment import Segment
from rich.text import Text

from embodied.observe.reach import actions
from embodied.observe.terminal.progress import duration, shown_number

WIDTH = 24
"""Most cells of a sparkline."""

BESIDE = 5
"""Lines of the terminal that the panel leaves to other text and to the progress bars."""

MOST = 1e300
"""Larger numbers count as not finite: their sums are not."""

_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_LABEL = 12

Values = Mapping[str, float]


def sparkline(values: Sequence[float], width: int = WIDTH, ascii_only: bool = False) -> str:
    """Draws a sequence with one character a value, between its lowest and its highest. Of more values than ``width``
    neighbours are averaged; what is not finite is a blank.

    >>> sparkline([0, 1, 2, 7], ascii_only=True)
    '_.-@'
    """
    steps = _ASCII if ascii_only else _BLOCKS
    cells = _averaged(values, width)
    finite = _finite(cells)
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = len(steps) / (high - low) if high > low else 0.0
    places = [min(int((value - low) * scale), len(steps) - 1) if abs(value) < MOST else None for value in cells]
    return "".join(" " if place is None else steps[place] for place in places)


def _averaged(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [place * len(values) // width for place in range(width + 1)]
    parts = [_finite(values[low:high]) for low, high in pairwise(edges)]
    return [math.fsum(part) / len(part) if part else math.nan for part in parts]


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if abs(value) < MOST]


class Panel:
    """The panel of a run's newest numbers in the terminal.

    Args:
        title: the run's name.
        rows: what was logged before this process began, oldest first.
    """

    def __init__(self, title: str, rows: Sequence[Values] = ()) -> None:
        self._title = title
        self._now: Values = {}
        self._evaluation: Values = {}
        self._past: dict[str, list[float]] = {name: [] for name in _OVER_TIME}
        self._left: tuple[float, float] | None = None  # seconds, and when they were estimated
        self._files: dict[str, Path] = {}
        self._drawn: tuple[tuple[int, int, bool], list[Segment]] | None = None
        self.failed: Exception | None = None
        """What drawing it has ended in; nothing is drawn from then on."""
        for row in rows:
            self._remember(row)

    def update(self, summary: Values) -> None:
        """Updates the panel with the metrics of an iteration, with ``iteration``, ``iterations`` and ``left_s``."""
        self._remember(summary)
        self._now = dict(summary)
        self.outdated()
        left = summary.get("left_s", 0.0)
        self._left = (left, monotonic()) if left > 0 else None

    def _remember(self, row: Values) -> None:
        for name, values in self._past.items():
            if name in row:
                values.append(row[name])
        if "eval/success_rate" in row:
            self._evaluation = dict(row)

    def set_files(self, files: Mapping[str, Path]) -> None:
        """Updates the panel's newest file of each kind, e.g. ``checkpoint``."""
        self._files = dict(files)

    def outdated(self) -> None:
        """Marks the panel to be drawn anew: the times in it have passed."""
        self._drawn = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.failed is not None:
            return
        place = (options.max_width, console.height, options.ascii_only)
        try:
            if self._drawn is None or self._drawn[0] != place:
                self._drawn = place, list(console.render(self._frame(*place), options))
            yield from self._drawn[1]
        except Exception as error:  # noqa: BLE001 (a display ends no run; who draws says it once)
            self.failed = error

    def _frame(self, width: int, height: int, ascii_only: bool) -> RenderableType:
        rows = list(self.rows(ascii_only, width - _LABEL - 4))[: height - BESIDE - 2]
        if not rows:
            return Text("", end="")
        lines = []
        for label, value in rows:
            line = Text(f"{label:<{_LABEL}}", style="dim", no_wrap=True, overflow="ellipsis")
            lines.append(line.append(value, style="not dim"))
        title = " · ".join([self._title, *self._progress()])
        return Frame(Text("\n", no_wrap=True, overflow="ellipsis").join(lines),
                     title=Text(title, style="bold"), title_align="left", border_style="dim", width=width)  # fmt: skip

    def _progress(self) -> Iterator[str]:
        if "iteration" in self._now:
            of = f"/{self._now['iterations']:.0f}" if "iterations" in self._now else ""
            yield f"iteration {self._now['iteration']:.0f}{of} done"
        if self._left is not None:
            seconds = self._left[0] - (monotonic() - self._left[1])
            if seconds > 0:
                yield f"about {duration(seconds)} left"

    def rows(self, ascii_only: bool = False, width: int = 80) -> Iterator[tuple[str, str]]:
        """Label and text of each line. Names of files lose their first parts where ``width`` cells are too few."""
        now = self._now
        successes, curves = self._successes(ascii_only), self._curves(ascii_only)
        if "rollout/success_rate" in now:
            yield from chain(successes, curves)
        else:  # what can rise leads
            yield from chain(curves, successes)
        for label, parts in _LINES.items():
            shown = [text(now[name]) for name, text in parts.items() if name in now]
            if label == "speed":
                shown = list(_speed(now))
            if shown:
                yield label, "   ".join(shown)
        for label, file in self._files.items():
            yield label, _ending(str(file), _age(file), width)

    def _successes(self, ascii_only: bool) -> Iterator[tuple[str, str]]:
        if "rollout/success_rate" in self._now:
            yield "success", _success(self._now, "rollout") + self._line("rollout/success_rate", ascii_only, _percent)
        if self._evaluation:
            at = f" after {self._evaluation[name]:.0f}" if (name := _step(self._evaluation)) else ""
            line = self._line("eval/success_rate", ascii_only, _percent)
            yield "evaluation", _success(self._evaluation, "eval") + at + line

    def _curves(self, ascii_only: bool) -> Iterator[tuple[str, str]]:
        for name, label in _CURVES.items():
            if name in self._now:
                yield label, shown_number(self._now[name]) + self._line(name, ascii_only, shown_number)

    def _line(self, name: str, ascii_only: bool, shown: Callable[[float], str]) -> str:
        past = self._past[name]
        finite = _finite(past)
        if len(past) < 2 or not finite:
            return ""
        return f"   {sparkline(past, ascii_only=ascii_only)} {shown(min(finite))} to {shown(max(finite))}"


def _step(row: Values) -> str:
    """The name under which a row has its iteration: a summary's, or that of a line of ``metrics.jsonl``."""
    return next((name for name in ("iteration", "step") if name in row), "")


def _success(row: Values, side: str) -> str:
    text = _percent(row[f"{side}/success_rate"])
    low, high = (row.get(f"{side}/success_{end}") for end in ("low", "high"))
    band = "" if low is None or high is None else f" ({_percent(low)} to {_percent(high)})"
    return text + band + drawn(row, side)


def drawn(row: Values, side: str) -> str:
    """Returns how the actions of a side's episodes were drawn, where that is known: ``, sampled``."""
    sampled = row.get(f"{side}/sampled")
    return "" if sampled is None else f", {actions(bool(sampled))}"


def speed_of_rollout(now: Values) -> Iterator[str]:
    """Yields how fast a rollout was: tokens a second where texts were written, else control steps."""
    if "rollout/tokens_per_s" in now:
        yield f"{shown_number(now['rollout/tokens_per_s'])} tokens/s"
    elif "rollout/env_steps_per_s" in now:
        yield f"{shown_number(now['rollout/env_steps_per_s'])} env-steps/s"


def _speed(now: Values) -> Iterator[str]:
    yield from speed_of_rollout(now)
    if "sft/samples_per_s" in now:
        yield f"{shown_number(now['sft/samples_per_s'])} samples/s"
    if (useful := useful_samples_per_s(now)) is not None:
        yield f"{shown_number(useful)} useful samples/s"


def useful_samples_per_s(now: Values) -> float | None:
    """Records that gave a gradient, each once, a second of the whole iteration, 1/s; None where that was not measured.

    ``train/samples_per_s`` counts them in each epoch, a second of the update alone.
    """
    names = ("train/records", "time/iteration_s")
    if not all(name in now for name in names) or not now["time/iteration_s"] > 0:
        return None
    return now[names[0]] / now[names[1]]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _age(file: Path) -> str:
    try:
        seconds = time() - file.stat().st_mtime
    except OSError:  # it was deleted since
        return ""
    return f", {duration(seconds)} ago" if seconds >= 1 else ", now"


def _ending(name: str, age: str, width: int) -> str:
    room = max(width - len(age), 8)
    return (name if len(name) <= room else f"…{name[1 - room :]}") + age


def _share(name: str) -> Callable[[float], str]:
    return lambda value: f"{name} {100 * value:.0f} %"


def _number(name: str) -> Callable[[float], str]:
    return lambda value: f"{name} {shown_number(value)}".strip()


def _gigabytes(name: str) -> Callable[[float], str]:
    return lambda value: f"{name} {shown_number(value)} GB".strip()


_CURVES = {
    "rollout/return_mean": "return",
    "rollout/progress_mean": "progress",
    "sft/loss": "loss",
    "sft/val_loss": "held out",
    "sft/token_accuracy": "tokens right",
}
_OVER_TIME = ("rollout/success_rate", "eval/success_rate", *_CURVES)

_LINES: Mapping[str, Mapping[str, Callable[[float], str]]] = {
    "KL": {
        "train/approx_kl": _number(""), "train/kl_reference": _number("reference"),
        "train/clip_share": lambda value: f"clip share {_percent(value)}",
    },
    "gradient": {
        "train/signal_to_noise": _number("signal/noise"),
        "train/noise_scale_episodes": lambda value: f"1 at {shown_number(value)} episodes",
    },
    "speed": {},
    "waits": {
        "time/policy_share": _share("policy"), "time/env_wait_share": _share("env workers"),
        "time/slot_idle_share": _share("idle slots"), "time/rank_wait_share": _share("other ranks"),
    },
    "stages": {
        "time/rollout_share": _share("rollout"), "time/train_share": _share("update"),
        "time/eval_share": _share("evaluation"), "time/save_share": _share("saving"),
    },
    "memory": {
        "memory/pss_gb": _gigabytes(""), "memory/pss_policy_gb": _gigabytes("policy"),
        "memory/pss_template_gb": _gigabytes("template"), "memory/pss_slots_gb": _gigabytes("slots"),
        "memory/device_peak_gb": _gigabytes("GPU"),
    },
}  # fmt: skip
