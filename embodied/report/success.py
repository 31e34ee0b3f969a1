"""Success by task: of one evaluation, before and after a training, and of several runs, each against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from embodied.evaluation import compare_kinds, comparison_text
from embodied.evaluation.compare import ALL, Comparison, Rate, rates, same_protocol, task_names
from embodied.evaluation.comparison_text import LETTERS, MOST_TASKS, letters, of_rate, p_value, protocol_of
from embodied.evaluation.pairwise import pairs
from embodied.evaluation.results import Lengths, WrittenEvaluation
from embodied.lib import hidden
from embodied.report import protocols as kinds
from embodied.report.reading import Run

Row = TypeVar("Row")


@dataclass(frozen=True)
class Side:
    """One of the evaluations that a report compares, with its letter and label on the page."""

    letter: str
    label: str
    evaluation: WrittenEvaluation

    @property
    def protocol(self) -> str:
        return protocol_of(self.evaluation)

    @property
    def answers(self) -> Path | None:
        """The file with the texts of this evaluation, if the run wrote one."""
        file = self.evaluation.file.parent.parent / "generations" / f"{self.evaluation.file.stem}.jsonl"
        return file if file.is_file() else None


@dataclass(frozen=True)
class Table:
    """A report's comparison of one evaluation with the first: a row for each task with its cells, and the verdict."""

    against: str  # letter of the other one, the first
    letter: str
    label: str
    protocol: str  # protocol of the second evaluation
    rows: Sequence[Sequence[str]]
    head: Sequence[str]  # column names of ``by_task``
    by_task: Sequence[Sequence[str]]  # the same rows, and how long the episodes of both were
    starts: str
    paired: bool
    p_value: str
    said: Sequence[str]
    by_kind: Sequence[Sequence[str]]  # head and rows, a kind and strength each; empty of tasks without kinds
    differing: Sequence[Sequence[str]]  # key, first, second, remark
    notes: Sequence[str]


@dataclass(frozen=True)
class Success:
    """The success section of a report: the evaluations, their comparisons, and notes."""

    sides: Sequence[Side]
    note: str  # says that the protocols differ; empty if they agree
    not_run: Sequence[str]  # how many episodes could not be run
    single: Sequence[Sequence[str]]  # head and rows, a task each, if there is one evaluation
    tables: Sequence[Table]
    refused: Sequence[str]  # why some were not compared
    chance: str  # says what many comparisons do to the tests; empty for one
    points: Sequence[dict[str, Any]]  # points of the chart


def success_section(runs: Sequence[Run]) -> Success:
    """Makes the success section of a report: of one run its first and newest evaluation, or the greedy and the sampled
    one where there are both; of several runs the newest of each."""
    sides = _before_and_after(runs[0]) if len(runs) == 1 else _newest(runs)
    points = [
        {"task": task, "side": side.label, "rate": rate.rate, "low": rate.low, "high": rate.high}
        for side in sides for task, rate in _shown(rates(side.evaluation))
    ]  # fmt: skip
    compared = pairs([side.evaluation for side in sides])
    tables = [_table(sides, one) for one in compared.comparisons]
    refused = [f"{LETTERS[second]} was not compared with {LETTERS[first]}: {error.message}"
               for (first, second), error in compared.refused]  # fmt: skip
    note = kinds.note((side.letter, side.evaluation) for side in sides)
    not_run = [said for side in sides if (said := _not_run(side, len(sides) > 1))]
    return Success(
        sides, note, not_run, _single(sides[0].evaluation) if len(sides) == 1 else [], tables, refused,
        comparison_text.chance(len(tables)) if len(tables) > 1 else "", points,
    )  # fmt: skip


def _not_run(side: Side, several: bool) -> str:
    one = side.evaluation
    if not one.not_run:
        return ""
    of = f" of {side.letter}" if several else ""
    why = f"; the first: {hidden.in_text(one.why_not_run)}" if one.why_not_run else ""
    return f"{one.not_run} planned episodes{of} were not run, and count neither as success nor as failure{why}"


def _shown(rows: Sequence[Row]) -> Sequence[Row]:
    """Rows of a table by task; of too many tasks the last row alone, which is over all."""
    return rows[-1:] if len(rows) > MOST_TASKS else rows


def _single(one: WrittenEvaluation) -> list[list[str]]:
    head, own = _lengths({"": one})
    return [
        ["task", "success", "95 % interval", *head],
        *([task, *of_rate(rate), *own.get(task, [])] for task, rate in _shown(rates(one))),
    ]


def _lengths(sides: Mapping[str, WrittenEvaluation]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the head of columns on the length of episodes, and their cells by task. What no file tells is left out.

    Args:
        sides: by their letters.
    """
    found: list[dict[str, Lengths]] = []
    for one, names in zip(sides.values(), task_names(*sides.values()), strict=True):
        found.append({{**names, -1: ALL}[number]: own for number, own in one.lengths.items()})
    columns = {
        "mean length": [{task: _number(one.steps_mean) for task, one in own.items()} for own in found],
        "to success, median": [{task: _number(one.steps_to_success) for task, one in own.items()} for own in found],
        "not run": [{task: str(one.not_run or "") for task, one in own.items()} for own in found],
    }
    head: list[str] = []
    cells: dict[str, list[str]] = {task: [] for own in found for task in own}
    for title, of_sides in columns.items():
        if any(text for side in of_sides for text in side.values()):
            head += [f"{letter} {title}".strip() for letter in sides]
            for task, own in cells.items():
                own += [side.get(task, "") for side in of_sides]
    return head, cells


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _before_and_after(run: Run) -> list[Side]:
    if run.last is None:
        return []
    if run.sampled is not None:
        return [Side("A", "greedy", run.last), Side("B", "sampled", run.sampled)]
    iterations = sorted(run.evaluations)
    chosen = [iterations[0], iterations[-1]] if run.before is not None else iterations
    found = [(iteration, run.evaluations[iteration]) for iteration in chosen]
    return [
        Side(letter, one.called(_label(run, iteration)), one)
        for letter, (iteration, one) in zip(LETTERS, found, strict=False)
    ]


def _label(run: Run, iteration: int) -> str:
    if run.evaluation_alone or (run.only_evaluates and not iteration):
        return run.name
    return f"after {iteration} iterations" if iteration else "before training"


def _newest(runs: Sequence[Run]) -> list[Side]:
    with_one = [(run, run.last) for run in runs if run.last is not None]
    newest = [(run, _label(run, max(run.evaluations))) for run, _ in with_one]
    labels = [label if label == run.name else f"{run.name} {label}" for run, label in newest]
    return [
        Side(letter, last.called(label if labels.count(label) == 1 else f"{label} ({letter})"), last)
        for letter, label, (_, last) in zip(LETTERS, labels, with_one, strict=False)
    ]


def _table(sides: Sequence[Side], one: Comparison) -> Table:
    names, other = letters(one), same_protocol(one.first, one.second) is False
    first, second = names
    more, lengths = _lengths({first: one.first, second: one.second})
    rows = [comparison_text.cells(row) for row in _shown([*one.tasks, one.over_all])]
    differing = [
        [row.key, *(str(hidden.in_value(row.key, value)) for value in (row.first, row.second)), row.remark]
        for row in one.differing
    ]
    head = ["task", first, "95 % interval", second, "95 % interval", "difference", "95 % interval", *more]
    side = sides[one.places[1]]
    return Table(
        first, second, side.label, side.protocol + (f", another than {first}'s" if other else ""), rows, head,
        [[*row, *lengths.get(row[0], [])] for row in rows], comparison_text.starts(one, names), not one.unpaired,
        p_value(one.adjusted),
        [*comparison_text.protocols(one, names), *comparison_text.lines(one, names)],
        _by_kind(one, names), differing,
        list(one.notes),
    )  # fmt: skip


def _by_kind(one: Comparison, names: tuple[str, str]) -> list[list[str]]:
    """Makes the table of a comparison by kind and strength, in which each column has a name; empty without kinds."""
    rows = compare_kinds.by_kind(one)
    head, *cells = compare_kinds.table(rows, names)
    return [[name or "95 % interval" for name in head], *cells] if rows else []


def under_perturbations(run: Run) -> list[list[str]]:
    """Makes the table of success under each perturbation in a run's newest evaluation."""
    return [
        [row["kind"], row["strength"], f"{row['successes']:g}/{row['episodes']:g} ({row['success_rate']:.0%})",
         f"{row['low']:.0%} to {row['high']:.0%}", f"{row['difference']:+.0%}",
         f"{row['difference_low']:+.0%} to {row['difference_high']:+.0%}"]
        for row in run.robustness
    ]  # fmt: skip


def over_all(evaluation: WrittenEvaluation) -> Rate:
    """Returns an evaluation's success rate over all tasks, with its interval."""
    return rates(evaluation)[-1][1]
