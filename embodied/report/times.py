"""Where the time went: seconds of each stage, and who did what in one rollout (``rollout.trace``)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.report.reading import Row, Run

STAGES = {
    "time/rollout_s": "rollout", "time/train_s": "training", "time/eval_s": "evaluation", "time/save_s": "saving",
}  # fmt: skip
REST = "everything else"
WORKERS = {
    "time/worker_reset_s": "resets", "time/worker_step_s": "control steps", "time/worker_render_s": "observations",
    "time/worker_video_s": "frames of videos",
}  # fmt: skip
OF_TEXTS = {"time/worker_reset_s": "reading of problems", "time/worker_step_s": "verification of answers"}
"""The same, where the env workers have problems in text."""
MOST_BARS, COLUMNS, MOST_LANES, MOST_TRACE = 60, 400, 40, 200_000_000
POLICY = 1  # "process" of the policy in a trace (embodied.observe.timeline)


@dataclass(frozen=True)
class Stage:
    """Seconds that a stage of the iterations took, and its share of the whole."""

    name: str
    seconds: float
    share: float  # share of the whole


@dataclass(frozen=True)
class Bar:
    """Seconds of a stage in the iterations ``first`` … ``last``, for a stacked bar."""

    first: int
    last: int
    name: str
    seconds: float  # mean of an iteration


@dataclass(frozen=True)
class Lane:
    """A span of work or waiting on one lane of a rollout's timeline, seconds from its start."""

    lane: str
    name: str
    began: float  # seconds
    ended: float
    share: float  # share of that time, in quarters; the rest are gaps too short for the picture


@dataclass(frozen=True)
class Picture:
    """A rollout's timeline for a report, read from its trace."""

    file: Path
    lanes: Sequence[Lane]
    left_out: int  # lanes
    seconds: float
    cut: bool  # the trace has the first part of the rollout alone
    totals: Mapping[str, Mapping[str, float]]  # lane → activity → seconds, as the trace has them


def stages(run: Run) -> list[Stage]:
    """Sums the seconds of each stage over all iterations, and what is left of them."""
    whole = sum(row.get("time/iteration_s", 0.0) for row in run.metrics.values())
    found = {label: sum(row.get(name, 0.0) for row in run.metrics.values()) for name, label in STAGES.items()}
    whole = max(whole, sum(found.values()))
    found[REST] = whole - sum(found.values())
    return [Stage(label, seconds, seconds / whole) for label, seconds in found.items() if seconds > 0] if whole else []


def of_workers(run: Run) -> list[Stage]:
    """Sums the seconds of env workers by activity, over all workers and iterations."""
    labels = {**WORKERS, **(OF_TEXTS if run.of_texts else {})}
    found = {label: sum(row.get(name, 0.0) for row in run.metrics.values()) for name, label in labels.items()}
    whole = sum(found.values())
    return [Stage(label, seconds, seconds / whole) for label, seconds in found.items() if seconds > 0]


def bars(run: Run) -> list[Bar]:
    """Lists the seconds of each iteration by stages, for bars; of many iterations, several share a bar."""
    rows = [(step, row) for step, row in run.metrics.items() if "time/iteration_s" in row]
    together = max(1, -(-len(rows) // MOST_BARS))
    parts = [rows[first : first + together] for first in range(0, len(rows), together)]
    return [bar for part in parts for bar in _bars(part)]


def _bars(part: Sequence[tuple[int, Row]]) -> Iterator[Bar]:
    first, last = part[0][0], part[-1][0]
    left = sum(row["time/iteration_s"] for _, row in part)
    for name, label in STAGES.items():
        seconds = sum(row.get(name, 0.0) for _, row in part)
        left -= seconds
        if seconds > 0:
            yield Bar(first, last, label, seconds / len(part))
    if left > 0:
        yield Bar(first, last, REST, left / len(part))


def picture(run: Run) -> Picture | None:
    """Reads the timeline of a run's newest rollout; None if there is none. A damaged trace is noted in
    ``run.problems``."""
    folder = run.folder / "trace"
    files = sorted(folder.glob("*.json")) or sorted((folder / "rank-00").glob("*.json"))  # a folder each
    files = [file for file in files if file.stem.endswith("train")] or files
    if not files:
        return None
    file = files[-1]
    try:
        if file.stat().st_size > MOST_TRACE:
            run.problems.append(f"{file} is too large for a picture ({MOST_TRACE:,} bytes at most)")
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        cut = bool(found.get("otherData", {}).get("spans_left_out"))
        return _drawn(file, found["traceEvents"], cut)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        run.problems.append(f"the timeline {file} is damaged: {str(error) or type(error).__name__}")
        return None


def _drawn(file: Path, events: Sequence[Mapping[str, Any]], cut: bool) -> Picture | None:
    names: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for event in events:
        lane = (int(event["pid"]), int(event["tid"]))
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[lane] = str(event["args"]["name"])
        elif event["ph"] == "X":
            began = float(event["ts"]) / 1e6
            spans.setdefault(lane, []).append((began, began + float(event["dur"]) / 1e6, str(event["name"])))
    if not spans:
        return None
    end = max(span[1] for own in spans.values() for span in own)
    if not 0 < end < 1e9:
        raise ValueError(f"it lasts {end} s")
    for lane in spans:
        names.setdefault(lane, f"lane {lane[1]}")
        if lane[0] == POLICY:
            spans[lane] = [(began, ended, "policy") for began, ended, _ in spans[lane]]
    shown = sorted(spans)[:MOST_LANES]
    lanes = [Lane(names[lane], *piece) for lane in shown for piece in _merged(spans[lane], end)]
    totals: dict[str, dict[str, float]] = {}
    for lane in shown:
        own = totals.setdefault(names[lane], {})
        for began, ended, name in spans[lane]:
            own[name] = own.get(name, 0.0) + ended - began
    return Picture(file, lanes, len(spans) - len(shown), end, cut, totals)


def _merged(spans: Sequence[tuple[float, float, str]], end: float) -> Iterator[tuple[str, float, float, float]]:
    """Divides a lane into columns; each shows what took most of it, and equal neighbours become one piece."""
    width = end / COLUMNS
    columns: list[dict[str, float]] = [{} for _ in range(COLUMNS)]
    for began, ended, name in spans:
        for column in range(max(0, int(began / width)), min(COLUMNS - 1, int(ended / width)) + 1):
            part = min(ended, (column + 1) * width) - max(began, column * width)
            if part > 0:
                columns[column][name] = columns[column].get(name, 0.0) + part
    shown = [_shown(column, width) for column in columns]
    first = 0
    for place in range(1, COLUMNS + 1):
        if place == COLUMNS or shown[place] != shown[first]:
            name, share = shown[first]
            if name:
                yield name, first * width, place * width, share
            first = place


def _shown(column: Mapping[str, float], width: float) -> tuple[str, float]:
    """What took most of a column, and how much of it was taken at all, in quarters."""
    if not column:
        return "", 0.0
    return max(column, key=column.__getitem__), min(1.0, math.ceil(4 * sum(column.values()) / width - 1e-6) / 4)
