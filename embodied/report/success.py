"""Success by task: of one evaluation, before and after a training, and of several runs against the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embodied import hidden
from embodied.errors import EvaluationError
from embodied.report.reading import Run
from embodied.run.compare import Comparison, Rate, compare, rates
from embodied.run.evaluations import Evaluation
from embodied.run.verdict import LETTERS, interval, lines, p_value, protocols, starts


@dataclass(frozen=True)
class Side:
    """An evaluation with its name on the page."""

    letter: str
    label: str
    evaluation: Evaluation


@dataclass(frozen=True)
class Table:
    """One evaluation against the first: a row for each task with its cells, and what it comes to."""

    letter: str
    label: str
    rows: Sequence[Sequence[str]]
    starts: str
    p_value: str
    said: Sequence[str]
    differing: Sequence[Sequence[str]]  # key, first, second, remark
    notes: Sequence[str]


@dataclass(frozen=True)
class Success:
    """What is said of success."""

    sides: Sequence[Side]
    single: Sequence[Sequence[str]]  # task, success, interval; of one evaluation alone
    tables: Sequence[Table]
    refused: Sequence[str]  # why some were not compared
    points: Sequence[dict[str, Any]]  # of the chart


def of(runs: Sequence[Run]) -> Success:
    """Takes the first and the newest evaluation of one run, or the newest ones of several."""
    sides = _before_and_after(runs[0]) if len(runs) == 1 else _newest(runs)
    points = [
        {"task": task, "side": side.label, "rate": rate.rate, "low": rate.low, "high": rate.high}
        for side in sides for task, rate in rates(side.evaluation)
    ]  # fmt: skip
    single = [[task, *_cells(rate)] for task, rate in rates(sides[0].evaluation)] if len(sides) == 1 else []
    tables, refused = _tables(sides)
    return Success(sides, single, tables, refused, points)


def _before_and_after(run: Run) -> list[Side]:
    if run.last is None:
        return []
    iterations = sorted(run.evaluations)
    chosen = [iterations[0], iterations[-1]] if run.before is not None else iterations
    return [
        Side(letter, run.name if run.evaluation_alone else _after(iteration), run.evaluations[iteration])
        for letter, iteration in zip(LETTERS, chosen, strict=False)
    ]


def _after(iteration: int) -> str:
    return "before training" if iteration == 0 else f"after {iteration} iterations"


def _newest(runs: Sequence[Run]) -> list[Side]:
    with_one = [(run, run.last) for run in runs if run.last is not None]
    labels = [f"{run.name} after {max(run.evaluations)} iterations" if not run.evaluation_alone else run.name
              for run, _ in with_one]  # fmt: skip
    return [
        Side(letter, label if labels.count(label) == 1 else f"{label} ({letter})", last)
        for letter, label, (_, last) in zip(LETTERS, labels, with_one, strict=False)
    ]


def _tables(sides: Sequence[Side]) -> tuple[list[Table], list[str]]:
    """Compares each with the first. All are compared at once, because Holm's method must know how many there are."""
    refused, fitting = [], []
    for side in sides[1:]:
        try:
            compare([sides[0].evaluation, side.evaluation])
            fitting.append(side)
        except EvaluationError as error:
            refused.append(f"{side.letter} was not compared with A: {error.message}")
    if not fitting:
        return [], refused
    found = compare([sides[0].evaluation, *(side.evaluation for side in fitting)])
    return [_table(side, one) for side, one in zip(fitting, found, strict=True)], refused


def _table(side: Side, one: Comparison) -> Table:
    rows = [
        [row.task, *_cells(row.first), *_cells(row.second), f"{row.difference:+.1%}", interval(row)]
        for row in (*one.tasks, one.over_all)
    ]
    differing = [
        [row.key, *(str(hidden.in_value(row.key, value)) for value in (row.first, row.second)), row.remark]
        for row in one.differing
    ]
    return Table(
        side.letter, side.label, rows, starts(one, side.letter), p_value(one.adjusted),
        [*protocols(one, side.letter), *lines(one, side.letter)], differing, list(one.notes),
    )  # fmt: skip


def _cells(rate: Rate) -> list[str]:
    return [f"{rate.successes}/{rate.episodes} ({rate.rate:.0%})", f"{rate.low:.0%} to {rate.high:.0%}"]


def under_perturbations(run: Run) -> list[list[str]]:
    """A row for each perturbation of the newest evaluation."""
    return [
        [row["kind"], row["strength"], f"{row['successes']:g}/{row['episodes']:g} ({row['success_rate']:.0%})",
         f"{row['low']:.0%} to {row['high']:.0%}", f"{row['difference']:+.0%}",
         f"{row['difference_low']:+.0%} to {row['difference_high']:+.0%}"]
        for row in run.robustness
    ]  # fmt: skip


def over_all(evaluation: Evaluation) -> Rate:
    """Success over all tasks."""
    return rates(evaluation)[-1][1]
