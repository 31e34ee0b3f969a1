"""``python -m embodied.tools.compare A B [C …]``: whether success differs between evaluations, or by chance alone.

    A, B, C ─▶ run/evaluations.py: files ─▶ run/compare.py: pairs, tests ─▶ tables, or --json

Each is compared with the first. Nothing is run: it reads what ``embodied.eval`` and trainings have written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, told
from embodied.observe.console import Console, make_console
from embodied.run.compare import Comparison, Rate, Row, compare, same_protocol
from embodied.run.evaluations import Evaluation, read
from embodied.run.verdict import LETTERS, interval, lines, protocols, starts


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, whatever the difference is, or 2 after an explained error."""
    given = _arguments().parse_args(argv)
    try:
        if not 2 <= len(given.evaluations) <= len(LETTERS):
            raise ConfigError(
                f"got {len(given.evaluations)} evaluations", f"name two or more, at most {len(LETTERS)}: runs/A runs/B"
            )
        if given.seed < 0:
            raise ConfigError(f"--seed is {given.seed}", "give a number from 0 on")
        evaluations = [read(name) for name in given.evaluations]
        found = compare(evaluations, given.unpaired, given.same_starts, given.seed)
    except EmbodiedError as error:
        print(told(error), file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"comparisons": [as_json(one) for one in found]}, indent=1, default=str))
    else:
        show(make_console(), evaluations, found)
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.compare", description="Say whether success differs between evaluations."
    )
    parser.add_argument(
        "evaluations", nargs="+", metavar="EVALUATION",
        help="runs/NAME (its newest), runs/NAME@10 (after 10 iterations), a file runs/NAME/eval/000010.json, or a "
        "checkpoint that its run has evaluated; the others are compared with the first",
    )  # fmt: skip
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument("--unpaired", action="store_true", help="compare rates; do not pair episodes of equal starts")
    starts.add_argument(
        "--same-starts", action="store_true", help="equal numbers are equal starts, although the envs' arguments differ"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap over tasks (default: 0)")
    parser.add_argument("--json", action="store_true", help="print every number as JSON")
    return parser


# -- tables ----------------------------------------------------------------------------------------------------------


def show(console: Console, evaluations: Sequence[Evaluation], found: Sequence[Comparison]) -> None:
    """Prints which evaluations there are, then each comparison."""
    rows = [
        [letter, str(one.file), str(one.conditions.get("weights", "")), *(_not_run(one) or [])]
        for letter, one in zip(LETTERS, evaluations, strict=False)
    ]
    console.table("evaluations", rows)
    for letter, one in zip(LETTERS[1:], found, strict=False):
        _show(console, letter, one)
    if len(found) > 1:
        console.say(
            f"\n{len(found)} comparisons with A: p-values are also given by Holm's method, which holds the chance of "
            "any false alarm at 5 %, and verdicts go by it. Each interval is of its own comparison alone."
        )


def _not_run(one: Evaluation) -> list[str]:
    return [f"{one.not_run} planned episodes were not run, and count neither way"] if one.not_run else []


def _show(console: Console, letter: str, one: Comparison) -> None:
    console.say(f"\n{letter} against A")
    for line in protocols(one, letter):
        console.say(line)
    if one.differing:
        head = ["condition", "A", letter, ""]
        rows = [[row.key, _short(row.first), _short(row.second), row.remark] for row in one.differing]
        console.table("CONDITIONS DIFFER; success is a result under its conditions:", [head, *rows])
    elif not one.notes:
        console.say("the same conditions")
    for note in one.notes:
        console.say(f"note: {note}")
    console.say(starts(one, letter))
    rows = [_cells(row) for row in [*one.tasks, one.over_all]]
    console.table("success", [["task", "A", "", letter, "", "difference", "95 % interval"], *rows])
    for line in lines(one, letter):
        console.say(line)


def _cells(row: Row) -> list[str]:
    return [
        row.task, *_rate(row.first), *_rate(row.second), f"{row.difference:+.1%}", interval(row),
    ]  # fmt: skip


def _rate(rate: Rate) -> list[str]:
    return [f"{rate.successes}/{rate.episodes} ({rate.rate:.0%})", f"{rate.low:.0%} to {rate.high:.0%}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# -- JSON ------------------------------------------------------------------------------------------------------------


def as_json(one: Comparison) -> dict[str, Any]:
    """Returns every number of a comparison."""
    sides = {
        name: {"name": side.name, "file": str(side.file), "weights": side.conditions.get("weights"),
               "starts": count, "not_run": side.not_run,
               "protocol": {key: side.protocol.get(key) for key in ("name", "hash")}}
        for name, side, count in zip(("first", "second"), (one.first, one.second), one.starts, strict=True)
    }  # fmt: skip
    low, high = one.over_tasks or (None, None)
    return {
        **sides, "same_protocol": same_protocol(one.first, one.second),
        "conditions_that_differ": [asdict(row) for row in one.differing], "notes": list(one.notes),
        "paired": not one.unpaired, "unpaired_because": one.unpaired or None, "shared_starts": one.shared,
        "tasks": [asdict(row) for row in one.tasks], "over_all": asdict(one.over_all), "gained": one.gained,
        "lost": one.lost, "test": "fisher" if one.unpaired else "mcnemar", "p_value": one.p_value,
        "p_value_holm": one.adjusted, "over_tasks": {"low": low, "high": high}, "differ": one.differ,
        "more_starts": None if one.more is None else one.more._asdict(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(piped(main))
