"""Compares two evaluations by kind and strength of their tasks, of envs whose tasks are variations of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from embodied.evaluation.compare import Comparison, Row, discordant, fisher, paired_row, task_names, unpaired_row
from embodied.evaluation.comparison_text import cells, p_value
from embodied.evaluation.kinds import ALL, place
from embodied.observe.statistics import mcnemar


@dataclass(frozen=True)
class KindRow:
    """Success of two compared evaluations on the tasks of a kind and strength, with the test of the difference."""

    kind: str
    strength: str  # ALL: of every strength
    success: Row
    gained: int  # starts on which the second did better; 0 if unpaired
    lost: int
    p_value: float | None  # McNemar's, or Fisher's of unpaired starts; None where there is no such test


def by_kind(comparison: Comparison) -> list[KindRow]:
    """Returns a row for each kind of tasks and one for each of its strengths, as far as files say them."""
    strata: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task, (kind, strength) in _kinds(comparison).items():
        strata[kind, ALL].add(task)
        strata[kind, strength or ALL].add(task)
    rows = (_row(comparison, *key, strata[key]) for key in sorted(strata, key=place))
    return [row for row in rows if row is not None]


def _kinds(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Returns kind and strength of each task that a file says them of; a strength that one file alone knows, too."""
    sides = comparison.first, comparison.second
    found: dict[str, tuple[str, str]] = {}
    for side, names in zip(sides, task_names(*sides), strict=True):
        for number, name in names.items() if side.task_kinds else ():
            strength = side.task_strengths[number] if side.task_strengths else ""
            found[name] = side.task_kinds[number], strength or found.get(name, ("", ""))[1]
    return found


def _row(comparison: Comparison, kind: str, strength: str, tasks: Iterable[str]) -> KindRow | None:
    """Returns the row of some tasks; None if a side has no start of them."""
    chosen = set(tasks)
    first, second = ({key: own for key, own in side.items() if key[0] in chosen} for side in comparison.outcomes)
    if not first or not second:
        return None
    if comparison.unpaired:
        success = unpaired_row(kind, first, second)
        return KindRow(kind, strength, success, 0, 0, fisher(success))
    gained, lost = discordant(first, second)
    return KindRow(kind, strength, paired_row(kind, first, second), gained, lost, mcnemar(gained, lost))


def table(rows: Sequence[KindRow], names: tuple[str, str]) -> list[list[str]]:
    """Makes a table of rows: a head, then kinds with their strengths below."""
    head = ["kind", "strength", names[0], "", names[1], "", "difference", "95 % interval", "p"]
    return [head, *([one.kind, one.strength, *cells(one.success)[1:], p_value(one.p_value)] for one in rows)]


def as_json(row: KindRow) -> dict[str, Any]:
    """Converts a row to JSON values."""
    found = asdict(row)
    success = found.pop("success")
    del success["task"]
    return {**found, **success}
