"""Makes the page: plain data → charts and tables → HTML with everything in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from embodied import __version__
from embodied.errors import ConfigError, RunFolderError
from embodied.evaluation import kinds
from embodied.evaluation.comparison_text import LETTERS
from embodied.lib.whole import write_whole
from embodied.observe.reach import SUCCESS
from embodied.report import charts, library, protocols, series, settings, sides, success, times, videos
from embodied.report.reading import Run

TABLE_ROWS = 25
"""Rows of the table under a chart; of more points, some are left out."""

MEGABYTE = 1_000_000


def write(runs: Sequence[Run], file: Path, most_mb: float = 30.0) -> videos.EmbeddedVideos:
    """Writes the report of ``runs`` to ``file``, whole or not at all; returns which videos are in it.

    Args:
        most_mb: size of the file, 10⁶ bytes. Videos are left out until it fits; everything else stays.

    Raises:
        ConfigError: a package of the extra ``report`` is missing, or there are too many runs.
        RunFolderError: the file cannot be written.
    """
    if len(runs) > len(LETTERS):
        raise ConfigError(f"got {len(runs)} runs", f"name at most {len(LETTERS)}")
    library.check_installed()
    script = library.javascript()
    facts = _facts(runs)
    bare = _html(facts | {"chosen": videos.EmbeddedVideos([], 0, 0, 0, 0)}, script)
    place = int(most_mb * MEGABYTE) - len(bare)
    chosen = videos.choose(runs, place, MARKUP)
    page = _html(facts | {"chosen": chosen}, script)
    try:
        write_whole(file, page, shared=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot write the report {file}: {error.strerror}", "name another file: --out FILE.html"
        ) from error
    return chosen


MARKUP = 2500
"""Bytes around a video in the page, at most: its card with names and numbers."""


def _html(facts: dict[str, Any], script: str) -> bytes:
    """Returns the page in UTF-8. Names of files that are none (lone surrogates) have question marks."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    room = files("embodied.report") / "assets"
    environment = Environment(
        loader=FunctionLoader(lambda name: (room / name).read_text(encoding="utf-8")), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["json"] = lambda value: Markup(in_script(value))
    own = {name: Markup((room / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js")}
    text = environment.get_template("page.html").render(
        facts, css=own["page.css"], js=own["page.js"], library=Markup(script), notice=library.NOTICE
    )
    return text.encode("utf-8", errors="replace")


def in_script(value: Any) -> str:
    """Encodes JSON so that it can stand in an HTML script element, whatever texts are in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _facts(runs: Sequence[Run]) -> dict[str, Any]:
    several = len(runs) > 1
    found = success.success_section(runs)
    lines = [_line_chart(chart) for chart in series.charts(runs)]
    pictures = _times_of_several(runs) if several else _times(runs[0])
    others, own = series.all_metrics(runs), series.custom_meanings(runs)
    title = runs[0].name.rstrip("/") if not several else f"{len(runs)} runs"
    return {
        "title": title, "several": several, "runs": runs, "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "numbers": [] if several else _numbers(runs[0]),
        "groups": series.groups(runs), "lines": lines, "others": others,
        "curves_note": protocols.of_runs(runs),
        "left_out": [(run.name, run.reach.why) for run in runs if run.reach.out],
        "first_other": next((name for name in others if not name.startswith("eval/")), ""),
        "meanings": {name: series.meaning(name, own) for name in others},
        "by_kind": [(run.name, kinds.table(run.kinds)) for run in runs if run.kinds],
        "perturbed": [(run.name, success.under_perturbations(run)) for run in runs if run.robustness],
        "success": found, "tasks": _task_chart(found), "rates": _rates(runs), **_TIMES, **pictures,
        "settings": settings.settings(runs), "with_config": [run for run in runs if run.config is not None],
        "states": [(run.name, run.running, run.state) for run in runs if run.state],
        "problems": [(run.name, run.problems) for run in runs if run.problems],
    }  # fmt: skip


_TIMES: dict[str, Any] = {"stages": [], "workers": [], "bars": None, "picture": None, "picture_note": "",
                          "picture_table": [], "of_runs": []}  # fmt: skip


def _numbers(run: Run) -> list[tuple[str, str]]:
    """The few numbers at the head of the page of one run."""
    found = []
    last = "newest evaluation" if run.sampled is None else "greedy"
    for label, one in (("first evaluation", run.before), (last, run.last), ("sampled", run.sampled)):
        if one is not None:
            rate = success.over_all(one)
            drawn = "" if run.sampled is not None else one.drawn or sides.drawn(run, "eval")
            name = ", ".join(filter(None, ["success", label, drawn]))
            found.append((name, f"{rate.rate:.0%} ({rate.low:.0%} to {rate.high:.0%})"))
    rows = run.metrics.values()
    found += _of_last_iteration(run)
    if run.metrics:
        planned = run.setting("runner.max_epochs")
        found.append(("iterations", f"{run.iterations}" + (f" of {planned}" if isinstance(planned, int) else "")))
    if seconds := sum(row.get("time/iteration_s", 0.0) for row in rows):
        found.append(("wall time", _duration(seconds)))
    if episodes := sum(row.get("rollout/episodes", 0.0) for row in rows):
        found.append((f"training {'answers' if run.of_texts else 'episodes'}", f"{episodes:,.0f}"))
    return found


def _of_last_iteration(run: Run) -> list[tuple[str, str]]:
    """Success of the last iteration; its return and progress where success is out of reach."""
    newest, steps = run.metrics.get(run.iterations, {}), run.setting("env.train.max_episode_steps")
    within = f"in {steps} steps" if steps and not run.of_texts else ""
    where = ", ".join(filter(None, ["last iteration", sides.drawn(run, "rollout"), within]))
    if run.reach.out:
        names = {"return": "rollout/return_mean", "progress": "rollout/progress_mean"}
        return [(f"{name}, {where}", f"{newest[key]:.3g}") for name, key in names.items() if key in newest]
    return [(f"success, {where}", f"{newest[SUCCESS]:.0%}")] if SUCCESS in newest else []


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _line_chart(chart: series.Chart) -> dict[str, Any]:
    steps = sorted({point.step for line in chart.lines for point in line.points})
    keep = set(steps[:: -(-len(steps) // TABLE_ROWS)] + steps[-1:])
    cells: dict[float, list[str]] = {step: [""] * len(chart.lines) for step in steps if step in keep}
    for place, line in enumerate(chart.lines):
        for point in line.points:
            if point.step in cells:
                cells[point.step][place] = _value(point, chart.share)
    together = max(line.together for line in chart.lines)
    notes = [chart.note, f"each point is the mean of at most {together} iterations" if together > 1 else ""]
    note, names = "; ".join(filter(None, notes)), ", ".join(line.label for line in chart.lines)
    ends = [f"{line.label} from {_value(line.points[0], chart.share)} to {_value(line.points[-1], chart.share)}"
            for line in chart.lines]  # fmt: skip
    said = f"{chart.title} over the iterations: {'; '.join(ends)}"
    return {
        "title": chart.title, "axis": chart.axis, "note": note, "names": names, "spec": charts.of_lines(chart, said),
        "head": ["iteration", *(line.label for line in chart.lines)],
        "rows": [[f"{step:g}", *own] for step, own in cells.items()], "left_out": len(steps) - len(cells),
    }  # fmt: skip


def _value(point: series.Point, share: bool) -> str:
    def said(value: float) -> str:
        return f"{value:.1%}" if share else f"{value:.4g}"

    band = f" ({said(point.low)} to {said(point.high)})" if point.low is not None and point.high is not None else ""
    return said(point.value) + band


def _task_chart(found: success.Success) -> dict[str, Any] | None:
    if not found.points:
        return None
    labels = ", ".join(side.label for side in found.sides)
    said = f"Success of each task with 95 % intervals: {labels}. The table has the numbers."
    return charts.of_tasks(found.points, said)


def _rates(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """pass@k and maj@k of the newest evaluations: run, name, value."""
    return [
        (run.name, name.removeprefix("eval/").replace("_at/", "@"), f"{value:.1%}")
        for run in runs if run.rates for name, value in run.rates[max(run.rates)].items()
    ]  # fmt: skip


def _times(run: Run) -> dict[str, Any]:
    stages, bars, picture = times.stages(run), times.bars(run), times.picture(run)
    said = ", ".join(f"{stage.name} {stage.share:.0%}" for stage in stages)
    found: dict[str, Any] = {
        "stages": [(stage.name, _duration(stage.seconds), f"{stage.share:.1%}") for stage in stages],
        "workers": [(stage.name, _duration(stage.seconds), f"{stage.share:.1%}") for stage in times.of_workers(run)],
        "bars": charts.of_bars(bars, f"Seconds of an iteration by stages: {said}") if bars else None,
    }
    if picture is not None:
        note = f"{picture.file.name}, {'the first ' if picture.cut else ''}{picture.seconds:.3g} s"
        note += f"; {picture.left_out} more lanes are left out" if picture.left_out else ""
        text = f"Timeline of one rollout: what the policy and each env slot did in {picture.seconds:.3g} s"
        found |= {"picture": charts.of_picture(picture, text), "picture_note": note}
        found |= {"picture_table": _picture_table(picture)}
    return found


def _picture_table(picture: times.Picture) -> list[list[str]]:
    """Seconds of each lane by what it did, under a head."""
    names = charts.in_order(dict.fromkeys(name for own in picture.totals.values() for name in own))
    rows = [[lane, *(f"{own[name]:.3g}" if name in own else "" for name in names)]
            for lane, own in picture.totals.items()]  # fmt: skip
    return [["lane", *(f"{name}, s" for name in names)], *rows]


def _times_of_several(runs: Sequence[Run]) -> dict[str, Any]:
    """A row for each run that has times, under a head."""
    found = {run.name: {stage.name: stage for stage in times.stages(run)} for run in runs}
    names = [name for name in (*times.STAGES.values(), times.REST) if any(name in own for own in found.values())]
    rows = [
        [run, _duration(sum(stage.seconds for stage in own.values())),
         *(f"{own[name].share:.1%}" if name in own else "" for name in names)]
        for run, own in found.items() if own
    ]  # fmt: skip
    return {"of_runs": [["run", "wall time", *names], *rows]} if rows else {}
