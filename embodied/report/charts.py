"""Charts as Vega-Lite specifications: plain mappings that the page's script draws. Colours come from the page's theme.

Names of runs and tasks stand in data and titles alone, never in an expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embodied.report.series import Chart, Line
from embodied.report.times import REST, STAGES, Bar, Lane, Picture

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""Names the language; nothing is fetched."""

SMOOTH = 150
"""Points of a chart up to which it is drawn as SVG; beyond, a canvas is faster."""

ACTIVITIES = (
    "policy", "step", "render", "reset", "round", "queued", "waits for the policy", "in vain", "lost",
)  # fmt: skip

Spec = dict[str, Any]


def of_lines(chart: Chart, description: str) -> Spec:
    """Makes the Vega-Lite spec of a line chart over the iterations, with bands; marked points, and a line's only one,
    have bars instead."""
    labels = [line.label for line in chart.lines]
    values = [value for line in chart.lines for value in _values(line)]
    y_axis = {"title": None, "format": "%" if chart.share else ".6~g"}
    scale = _scale(chart, [row["y"] for row in values])
    x: Spec = {"field": "x", "type": "quantitative", "title": "iteration", "axis": {"tickMinStep": 1}}
    names: Spec = {"domain": labels}
    legend = None if len(labels) == 1 else {**_legend(), "symbolType": "stroke", "symbolOpacity": 1}
    colour: Spec = {"field": "s", "type": "nominal", "scale": names, "legend": legend}
    dash = {**colour}
    ends = {"y": {"field": "l", "type": "quantitative"}, "y2": {"field": "h"}}
    y: Spec = {"field": "y", "type": "quantitative", "axis": y_axis, "scale": scale}
    lines, marked = {"filter": "!datum.m"}, {"filter": "datum.m"}
    layers: list[Spec] = []  # only those that have data: the library complains of others
    if any("l" in row and "m" not in row for row in values):
        layers.append({"transform": [lines, {"filter": "isValid(datum.l)"}], "mark": {"type": "area", "opacity": 0.16},
                       "encoding": ends})  # fmt: skip
    if any("l" in row and "m" in row for row in values):
        layers.append({"transform": [marked, {"filter": "isValid(datum.l)"}], "mark": {"type": "rule"},
                       "encoding": ends})  # fmt: skip
    if any("m" not in row for row in values):
        layers.append({"transform": [lines], "mark": {"type": "line", "strokeWidth": 2},
                       "encoding": {"y": y, "strokeDash": dash}})  # fmt: skip
    if any("m" in row for row in values):
        dots = {"type": "line", "strokeWidth": 1.5, "point": {"filled": True, "size": 60}}
        layers.append({"transform": [marked], "mark": dots, "encoding": {"y": y, "strokeDash": dash}})
    layers.append(_hover(chart))
    spec = _spec(description, values, {"x": x, "color": colour}, layers, 220)
    return {**spec, "usermeta": {"embedOptions": {"renderer": "svg" if len(values) <= SMOOTH else "canvas"}}}


def _scale(chart: Chart, values: Sequence[float]) -> Spec:
    """Shares have the whole range unless all are small; a constant has 0 in sight."""
    low, high = min(values), max(values)
    if chart.share and (high > 0.2 or high == 0):
        return {"domain": [0, 1]}
    if low == high:
        return {"domain": [min(low, 0), max(high, 0) or 1]}
    return {"zero": chart.share}


def _values(line: Line) -> list[Spec]:
    return [
        {"x": point.step, "y": _short(point.value), "s": line.label,
         **({"l": _short(point.low), "h": _short(point.high)} if point.low is not None and point.high is not None
            else {}), **({"m": True} if line.marked or len(line.points) == 1 else {})}
        for point in line.points
    ]  # fmt: skip


def _hover(chart: Chart) -> Spec:
    """A rule at the iteration under the pointer, which tells all values there."""
    number = ".1%" if chart.share else ".4~g"
    told = [
        {"field": f"t{place}", "type": "quantitative", "title": line.label, "format": number}
        for place, line in enumerate(chart.lines)
    ]
    rows: dict[float, Spec] = {}
    for place, line in enumerate(chart.lines):
        for point in line.points:
            rows.setdefault(point.step, {"x": point.step})[f"t{place}"] = _short(point.value)
    nearest = {"type": "point", "encodings": ["x"], "nearest": True, "on": "pointermove", "clear": "pointerout"}
    return {
        "data": {"values": [row for _, row in sorted(rows.items())]},
        "mark": {"type": "rule", "opacity": 0}, "params": [{"name": "hover", "select": nearest}],
        "encoding": {
            "color": {"value": "#888"},
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 0.6}, "value": 0},
            "tooltip": [{"field": "x", "type": "quantitative", "title": "iteration"}, *told],
        },
    }  # fmt: skip


def of_tasks(rows: Sequence[Mapping[str, Any]], description: str) -> Spec:
    """Makes the Vega-Lite spec of the chart of success by task, with intervals.

    Args:
        rows: ``task``, ``side`` (whose success), ``rate``, ``low``, ``high``.
    """
    sides, tasks = ([*dict.fromkeys(row[name] for row in rows)] for name in ("side", "task"))
    colour: Spec = {"field": "side", "type": "nominal", "scale": {"domain": sides}, "legend": _legend()}
    shape: Spec = {"field": "side", "type": "nominal", "scale": {"domain": sides}, "legend": _legend()}
    rate: Spec = {
        "field": "rate", "type": "quantitative", "title": "episodes that succeed",
        "axis": {"format": "%", "tickCount": 5}, "scale": {"domain": [0, 1]},
    }  # fmt: skip
    y: Spec = {"field": "task", "type": "nominal", "title": None, "sort": tasks, "axis": {"labelLimit": 260}}
    offset = {"field": "side", "type": "nominal", "scale": {"domain": sides, "paddingOuter": 0.6}}
    told = [
        {"field": "task", "type": "nominal"}, {"field": "side", "type": "nominal", "title": "of"},
        *({"field": name, "type": "quantitative", "format": ".1%"} for name in ("rate", "low", "high")),
    ]  # fmt: skip
    layers: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 2},
         "encoding": {"x": {**rate, "field": "low"}, "x2": {"field": "high"}, "tooltip": told}},
        {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
         "encoding": {"x": rate, "shape": shape, "tooltip": told}},
    ]  # fmt: skip
    height = len(tasks) * (10 + 14 * len(sides))
    return _spec(description, rows, {"y": y, "yOffset": offset, "color": colour}, layers, height)


def of_bars(bars: Sequence[Bar], description: str) -> Spec:
    """Makes the Vega-Lite spec of the seconds of an iteration by stages, stacked."""
    values = [
        {"a": f"{bar.first}" if bar.first == bar.last else f"{bar.first}–{bar.last}", "x": bar.first, "s": bar.name,
         "y": _short(bar.seconds)} for bar in bars
    ]  # fmt: skip
    stages = [name for name in (*STAGES.values(), REST) if any(bar.name == name for bar in bars)]
    return {
        **_base(description, values, height=220), "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": "iteration", "axis": {"labelOverlap": True,
                                                                                  "labelAngle": 0}},
            "y": {"field": "y", "type": "quantitative", "title": "seconds of an iteration"},
            "color": {"field": "s", "type": "nominal", "scale": {"domain": stages}, "legend": _legend()},
            "tooltip": [
                {"field": "a", "type": "nominal", "title": "iterations"},
                {"field": "s", "type": "nominal", "title": "stage"},
                {"field": "y", "type": "quantitative", "title": "seconds", "format": ".3~s"},
            ],
        },
    }  # fmt: skip


def of_picture(picture: Picture, description: str) -> Spec:
    """Makes the Vega-Lite spec of a rollout's timeline: a lane for the policy and for each env slot."""
    lanes = [*dict.fromkeys(piece.lane for piece in picture.lanes)]
    names = [*dict.fromkeys(piece.name for piece in picture.lanes)]
    ordered = in_order(names)
    spec = {
        **_base(description, [_piece(piece) for piece in picture.lanes], 16 * len(lanes)),
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "b", "type": "quantitative", "title": "seconds",
                  "scale": {"domain": [0, _short(picture.seconds)], "nice": False}},
            "x2": {"field": "e"},
            "y": {"field": "n", "type": "nominal", "title": None, "sort": lanes, "axis": {"labelOverlap": True}},
            "color": {"field": "s", "type": "nominal", "scale": {"domain": ordered}, "legend": _legend()},
            "opacity": {"field": "o", "type": "quantitative", "scale": {"domain": [0, 1], "range": [0, 1]},
                        "legend": None},
            "tooltip": [
                {"field": "n", "type": "nominal", "title": "lane"}, {"field": "s", "type": "nominal", "title": "what"},
                {"field": "b", "type": "quantitative", "title": "from, s", "format": ".3f"},
                {"field": "e", "type": "quantitative", "title": "to, s", "format": ".3f"},
            ],
        },
        "usermeta": {"embedOptions": {"renderer": "canvas"}},
    }  # fmt: skip
    return spec


def in_order(names: Iterable[str]) -> list[str]:
    """Sorts names of activities of a rollout as the legend shows them, unknown ones last.

    >>> in_order(["yawns", "step", "policy"])
    ['policy', 'step', 'yawns']
    """
    known = [*names]
    return [name for name in ACTIVITIES if name in known] + [name for name in known if name not in ACTIVITIES]


def _piece(piece: Lane) -> Spec:
    return {"n": piece.lane, "s": piece.name, "b": _short(piece.began), "e": _short(piece.ended), "o": piece.share}


def _spec(
    description: str, values: Sequence[Mapping[str, Any]], encoding: Spec, layers: list[Spec], height: int
) -> Spec:
    return {**_base(description, values, height), "encoding": encoding, "layer": layers}


def _base(description: str, values: Sequence[Mapping[str, Any]], height: int) -> Spec:
    return {
        "$schema": SCHEMA, "description": description, "width": "container", "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"}, "data": {"values": list(values)},
    }  # fmt: skip


def _legend() -> Spec:
    return {"title": None, "orient": "top", "labelLimit": 320}


def _short(value: float) -> float:
    """Five digits are more than a screen shows."""
    return float(f"{value:.5g}")
