"""Curves over the iterations: which there are, and points of one run or of several seeds.

Runs whose configurations differ in nothing but the seed and names form one series: its line is their mean, its band
goes from the lowest to the highest of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from embodied.observe.metrics import METRICS
from embodied.observe.reach import SUCCESS
from embodied.observe.trackers.trackers import ROWS
from embodied.report import protocols, sides
from embodied.report.reading import Run
from embodied.run.folder.folder import MAY_CHANGE, differences

MOST_POINTS = 400
"""Points of a line; of more iterations, several together make one."""

SEEDS = "band: lowest to highest seed"
OTHERS = "evaluations of different protocols"

OF_ITS_OWN = (
    "runner.seed", "runner.experiment_name", "env.eval.video_cfg", *(key for key in MAY_CHANGE if key != "env.eval"),
)  # fmt: skip
"""Keys that may differ between seeds of one experiment: beside the seed, those that change no number."""

SEEDED = ("actor.model.seed",)
"""Keys that follow the seed unless they are set."""


@dataclass(frozen=True)
class ChartMetric:
    """A metric to draw on a chart: its label, and the metrics of its interval's ends."""

    metric: str
    label: str
    low: str = ""  # metrics of the ends of its interval
    high: str = ""
    points: bool = False  # measured now and then: marked points


@dataclass(frozen=True)
class Panel:
    """A chart to draw: metrics that have one unit, with title and axis."""

    title: str
    axis: str
    shown: Sequence[ChartMetric]
    share: bool = False  # 0..1, shown as per cent
    with_several: int = 1  # with several runs: at most so many, each in a chart of its own
    note: str = ""


RETURN = "Return"

PANELS = (
    Panel("Success", "episodes that succeed", (
        ChartMetric("rollout/success_rate", "training", "rollout/success_low", "rollout/success_high"),
        ChartMetric("eval/success_rate", "evaluation", "eval/success_low", "eval/success_high", points=True),
    ), share=True, with_several=2, note="95 % intervals (Wilson)"),
    Panel(RETURN, "", (
        ChartMetric("rollout/return_mean", "training"), ChartMetric("eval/return_mean", "evaluation", points=True),
    ), with_several=2),
    Panel("Progress", "how far episodes got, 1 = solved", (
        ChartMetric("rollout/progress_mean", "training"), ChartMetric("eval/progress_mean", "evaluation", points=True),
    ), with_several=2),
    Panel("KL", "nats", (
        ChartMetric("train/approx_kl", "to the acting policy"), ChartMetric("train/kl_reference", "to the reference"),
    ), with_several=2),
    Panel("Clip share", "ratios without gradient", (
        ChartMetric("train/clip_share", "clipped"), ChartMetric("train/clip_share_low", "ratio below 1"),
        ChartMetric("train/clip_share_high", "ratio above 1"),
    ), share=True),
    Panel("Entropy", "nats", (ChartMetric("train/entropy", "entropy"),)),
    Panel("Staleness", "optimizer updates", (
        ChartMetric("train/staleness_mean", "mean"), ChartMetric("train/staleness_max", "largest"),
    ), note="updates between acting and training"),
    Panel("Loss", "", (
        ChartMetric("train/loss", "policy and all terms"), ChartMetric("train/value_loss", "value head"),
    )),
    Panel("Gradient", "2-norm", (ChartMetric("train/grad_norm", "before clipping"),)),
    Panel("Signal to noise", "of an iteration's gradient", (ChartMetric("train/signal_to_noise", "signal/noise"),)),
    Panel("Noise scale", "episodes", (ChartMetric("train/noise_scale_episodes", "for a signal/noise of 1"),)),
    Panel("Supervised loss", "nats", (
        ChartMetric("sft/loss", "with augmentation"), ChartMetric("sft/clean_loss", "without"),
        ChartMetric("sft/val_loss", "held out", points=True),
    ), with_several=3),
    Panel("Token accuracy", "tokens", (
        ChartMetric("sft/token_accuracy", "training"), ChartMetric("sft/val_token_accuracy", "held out", points=True),
    ), share=True, with_several=2),
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A step with a value and, if there is one, its interval or band."""

    step: float
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of a chart, one for each group of runs that differ in their seeds alone."""

    label: str
    points: Sequence[Point]
    together: int  # iterations that make a point
    marked: bool = False


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone, drawn as one line with a band."""

    label: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class Chart:
    """A chart with the lines of a report's runs in it."""

    title: str
    axis: str
    share: bool
    note: str
    lines: Sequence[Line]


def groups(runs: Sequence[Run], beside: tuple[str, ...] = (), apart: tuple[str, ...] = ()) -> list[Group]:
    """Groups runs that differ in their seeds alone, in their order; each seed is once in a group.

    Args:
        beside: keys in which they may differ besides.
        apart: keys in which they may not, although they change no number.
    """
    found: list[list[Run]] = []
    for run in runs:
        same = next((group for group in found if all(_same(one, run, beside, apart) for one in group)), None)
        if same is None:
            found.append([run])
        else:
            same.append(run)
    return [Group(_label(group), group) for group in found]


def _same(first: Run, second: Run, beside: tuple[str, ...], apart: tuple[str, ...]) -> bool:
    return first.setting("runner.seed") != second.setting("runner.seed") and alike(first, second, beside, apart)


def alike(first: Run, second: Run, beside: tuple[str, ...] = (), apart: tuple[str, ...] = ()) -> bool:
    """Returns whether two runs have one configuration but for seeds and names; as :func:`groups` has it."""
    if first.config is None or second.config is None:
        return False
    own = (*OF_ITS_OWN, *beside, *(SEEDED if all(_is_seeded(run) for run in (first, second)) else ()))
    changed = [key for key, _, _ in differences(first.config, second.config)]
    return all(key.startswith(own) and not key.startswith(apart) for key in changed)


def _is_seeded(run: Run) -> bool:
    """Returns whether the model's seed is the run's."""
    return all(run.setting(key) == run.setting("runner.seed") for key in SEEDED)


def _label(runs: Sequence[Run]) -> str:
    first = runs[0].name.rstrip("/")
    return first if len(runs) == 1 else f"{first} and {len(runs) - 1} more, {len(runs)} seeds"


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Returns the charts of what the runs have logged; empty ones are left out. What can rise leads: success stands
    behind return and progress where that of training is out of reach in every run."""
    found = groups(runs)
    several = len(runs) > 1
    success, paid, progress, *rest = PANELS
    leading = [paid, progress, success] if all(run.reach.out for run in runs) else [success, paid, progress]
    made = [
        chart for panel in (*leading, *rest)
        for chart in (_over_runs(panel, found) if several else _of_run(panel, runs[0]))
    ]  # fmt: skip
    return [chart for chart in made if chart.lines]


def _of_run(panel: Panel, run: Run) -> Iterator[Chart]:
    """The chart of a panel; of returns that count different things, one for each."""
    counted = [sides.pays(run, sides.side_of(shown.metric)) if panel.title == RETURN else "" for shown in panel.shown]
    for kind in dict.fromkeys(counted):
        own = [shown for shown, of in zip(panel.shown, counted, strict=True) if of == kind]
        lines = [
            line for shown in own
            if (line := _line(_label_of(panel, shown, run), [_points(run, shown)], shown.points))
        ]  # fmt: skip
        title = panel.title if len(own) == len(panel.shown) else f"{panel.title}: {own[0].label}"
        sided = bool(sides.side_of(panel.shown[0].metric)) and panel.title != RETURN
        only = lines[0].label if len(lines) == 1 and sided else ""  # there is no legend then
        axis = kind or ", ".join(filter(None, [panel.axis, only]))
        yield Chart(title, axis, panel.share, _note(panel.note, own, lines, [run]), lines)


def _label_of(panel: Panel, shown: ChartMetric, run: Run) -> str:
    """Names a line of one run's chart: the episodes of training and evaluations with what they differ in."""
    side = sides.side_of(shown.metric)
    if not side or panel.title == RETURN:
        return shown.label
    how = sides.drawn(run, side) if panel.share else ""
    return ", ".join(filter(None, [shown.label, how, sides.cut(run, side)]))


def _note(usual: str, shown: Sequence[ChartMetric], lines: Sequence[Line], runs: Sequence[Run]) -> str:
    """The note of a chart. It says so if points of evaluations of different protocols are drawn together."""
    evaluated = any(line.marked for line in lines) and any(one.metric.startswith("eval/") for one in shown)
    return "; ".join(filter(None, [usual, OTHERS if evaluated and protocols.of_runs(runs) else ""]))


def _over_runs(panel: Panel, found: Sequence[Group]) -> Iterator[Chart]:
    """Charts of several runs: one for each metric, and for each thing that it counts. Bands are those of seeds if any
    are there, else intervals."""
    seeds = any(len(group.runs) > 1 for group in found)
    for shown in panel.shown[: panel.with_several]:
        of_one = replace(shown, low="", high="") if seeds else shown
        title = f"{panel.title}: {shown.label}" if panel.with_several > 1 else panel.title
        for axis, own in _by_kind(panel, shown, found).items():
            lines = [
                line for group in own
                if (line := _line(group.label, [_points(run, of_one) for run in group.runs], shown.points))
            ]  # fmt: skip
            note = _note(SEEDS if seeds else panel.note, [shown], lines, [run for group in own for run in group.runs])
            yield Chart(title, axis, panel.share, note, lines)


def _by_kind(panel: Panel, shown: ChartMetric, found: Sequence[Group]) -> dict[str, list[Group]]:
    """Returns the groups that share a chart of a metric, by the text beside its axis."""
    side, kinds = sides.side_of(shown.metric), dict[str, list[Group]]()
    for group in found:
        first = group.runs[0]
        axis = panel.axis
        if panel.title == RETURN:
            axis = sides.pays(first, side)
        elif panel.share and side:
            axis = ", ".join(filter(None, [axis, sides.drawn(first, side)]))
        kinds.setdefault(axis, []).append(group)
    return kinds


def _points(run: Run, shown: ChartMetric) -> list[Point]:
    if shown.metric == SUCCESS and run.reach.out:
        return []
    found = [
        Point(step, row[shown.metric], row.get(shown.low), row.get(shown.high))
        for step, row in run.metrics.items() if shown.metric in row
    ]  # fmt: skip
    return found or (_of_files(run) if shown.metric == "eval/success_rate" else [])


def _of_files(run: Run) -> list[Point]:
    """Success in the evaluations' files, for a run whose metrics are not there."""
    found = []
    for iteration, one in sorted(run.evaluations.items()):
        own = [success for outcomes in one.outcomes.values() for success in outcomes]
        found.append(Point(iteration, sum(own) / len(own)))
    return found


def _line(label: str, runs: Sequence[Sequence[Point]], marked: bool) -> Line | None:
    """The line of one run, or of the mean of several seeds over the steps that any of them has."""
    with_points = [points for points in runs if points]
    if not with_points:
        return None
    points = list(with_points[0]) if len(runs) == 1 else list(_over_seeds(with_points))
    together = -(-len(points) // MOST_POINTS)
    if together > 1:
        ends = _ends(len(points), together)
        points = [_mean(points[first:last]) for first, last in pairwise(ends)]
    return Line(label, points, together, marked)


def _ends(count: int, together: int) -> list[int]:
    """Divides ``count`` places into parts of nearly equal size, at most ``together``: a small last one would be a spike
    of noise."""
    parts = -(-count // together)
    return [count * part // parts for part in range(parts + 1)]


def _over_seeds(runs: Sequence[Sequence[Point]]) -> Iterator[Point]:
    values: dict[float, list[float]] = {}
    for points in runs:
        for point in points:
            values.setdefault(point.step, []).append(point.value)
    for step, own in sorted(values.items()):
        yield Point(step, sum(own) / len(own), min(own), max(own))


def _mean(points: Sequence[Point]) -> Point:
    lows = [point.low for point in points if point.low is not None]
    highs = [point.high for point in points if point.high is not None]
    return Point(
        points[-1].step, sum(point.value for point in points) / len(points),
        sum(lows) / len(lows) if lows else None, sum(highs) / len(highs) if highs else None,
    )  # fmt: skip


def all_metrics(runs: Sequence[Run]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Collects every logged metric for the report's table: metric → label of the runs → points (iteration, value),
    thinned like the charts."""
    own = groups(runs)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name in sorted({name for run in runs for row in run.metrics.values() for name in row}):
        for group in own:
            line = _line(group.label, [_points(run, ChartMetric(name, "")) for run in group.runs], False)
            if line:
                found.setdefault(name, {})[group.label] = [(point.step, point.value) for point in line.points]
    return found


def meaning(metric: str, custom: Mapping[str, str] | None = None) -> str:
    """Explains a metric in words; empty for one that this version does not know.

    Args:
        custom: meanings of metrics that the runs' own terms measure.
    """
    parts = [part if not part.isdigit() else "<n>" for part in metric.split("/")]
    return METRICS.get("/".join(parts), "") or (custom or {}).get(metric, "")


def custom_meanings(runs: Sequence[Run]) -> dict[str, str]:
    """Reads the meanings that runs keep of the metrics of their users' loss terms. A file that cannot be read says
    nothing."""
    found: dict[str, str] = {}
    for run in runs:
        with suppress(OSError, ValueError, AttributeError):
            rows = json.loads((run.folder / ROWS).read_text(encoding="utf-8"))
            found |= {str(name): str(text) for name, text in rows.items()}
    return found
