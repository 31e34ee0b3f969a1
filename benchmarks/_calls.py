"""What a model did with the calculator, from the texts that an evaluation has kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.envs.text.calculator import CLOSE, OPEN
from embodied.envs.text.expression import BadExpression, calculate

_CALL = re.compile(f"{re.escape(OPEN)}(.*?)(?:({re.escape(CLOSE)})|$)", re.DOTALL)


def measured(folder: Path) -> dict[str, Any]:
    """The counts of the last evaluation in a run's folder (:func:`count`)."""
    file = max((folder / "generations").glob("*.jsonl"))
    return count([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()])


def count(episodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts calls in whole transcripts.

    Args:
        episodes: ``prompt`` and ``response`` of the last turn; the prompt holds all turns before it.

    Returns:
        ``episodes``; ``with_call``: of them, those that call; ``calls``; of these ``well_formed``: closed, and what
        stands in them can be evaluated; and ``of_problem``: the expression is the problem's. ``answered_right``: of the
        episodes with such a call, those that succeed.
    """
    found = dict.fromkeys(("episodes", "with_call", "calls", "well_formed", "of_problem", "right_call"), 0)
    right = 0
    for episode in episodes:
        problem, calls = calls_of(episode["prompt"], episode["response"])
        same = [expression == problem for expression in calls]
        found["episodes"] += 1
        found["with_call"] += bool(calls)
        found["calls"] += len(calls)
        found["well_formed"] += sum(map(is_well_formed, calls))
        found["of_problem"] += sum(same)
        found["right_call"] += any(same)
        right += any(same) and episode["success"]
    return {**found, "answered_right": right}


def calls_of(prompt: str, response: str) -> tuple[str, list[str | None]]:
    """The problem, and what stands in each call; None for one that is not closed."""
    problem, _, rest = (prompt + response).partition("=")
    return problem, [match[1] if match[2] else None for match in _CALL.finditer(rest)]


def is_well_formed(expression: str | None) -> bool:
    """Whether a call is closed and its expression can be evaluated."""
    if expression is None:
        return False
    try:
        calculate(expression)
    except BadExpression:
        return False
    return True


def table(rows: Mapping[str, Mapping[str, int]], heads: Sequence[str] = ("run",)) -> str:
    """Markdown of the shares."""
    names = [*heads, "episodes with a call", "calls an episode", "well-formed", "the problem's", "then answered right"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for name, row in rows.items():
        cells = [
            share(row["with_call"], row["episodes"]), f"{row['calls'] / row['episodes']:.2f}",
            share(row["well_formed"], row["calls"]), share(row["of_problem"], row["calls"]),
            share(row["answered_right"], row["right_call"]),
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    """A share in per cent; a dash of nothing."""
    return f"{part / whole:.1%}" if whole else "–"
