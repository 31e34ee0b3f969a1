"""``python -m embodied.tools.compare A B [C …]``: whether success differs between evaluations, or by chance alone.

    A, B, C ─▶ evaluation/results.py: files ─▶ evaluation/pairwise.py: A B, A C, B C; tests ─▶ tables, or --json

    --counts 30/50 41/50 ─▶ evaluation/counts.py: counts that others publish, of which there are no files

Each is compared with each other one, and with three or more McNemar's p-values are corrected for the number of pairs by
Holm's method (Holm 1979, :mod:`embodied.evaluation.pairwise`). Nothing is run: it reads what ``embodied.eval`` and
trainings have written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.evaluation import compare_kinds, counts, counts_text
from embodied.evaluation.chosen import chosen
from embodied.evaluation.compare import Comparison, same_protocol
from embodied.evaluation.comparison_text import (
    LETTERS,
    chance,
    interval,
    letters,
    lines,
    p_value,
    protocols,
    starts,
    table,
)
from embodied.evaluation.pairwise import Pairs, pairs
from embodied.evaluation.results import WrittenEvaluation, read
from embodied.observe.terminal.console import Console, make_console


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, whatever the difference is, or 2 after an explained error."""
    given = _arguments().parse_args(argv)
    try:
        if given.counts is not None or given.best_of is not None:
            return _of_counts(given)
        if not 2 <= len(given.evaluations) <= len(LETTERS):
            raise ConfigError(
                f"got {len(given.evaluations)} evaluations, expected 2 to {len(LETTERS)}",
                "name two runs (runs/A runs/B), or two evaluations of one run by iteration (runs/A@0 runs/A@10)",
            )
        if given.seed < 0:
            raise ConfigError(f"--seed is {given.seed}", "give a number from 0 on")
        evaluations = [read(name) for name in given.evaluations]
        found = pairs(evaluations, given.unpaired, given.same_starts, given.seed)
        for (first, _), error in found.refused:
            if first == 0:  # the others are all compared with A
                raise error
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(all_as_json(found, len(evaluations)), indent=1, default=str))
    else:
        show(make_console(), evaluations, found)
    return 0


def _of_counts(given: argparse.Namespace) -> int:
    """Compares counts in place of evaluations."""
    if not given.counts:
        raise ConfigError(
            "--best-of stands alone, and evaluations in files say themselves whether they were chosen",
            "give the counts that it is about: --counts 30/50 41/50 --best-of 13",
        )
    if given.evaluations or given.unpaired or given.same_starts:
        raise ConfigError(
            "--counts compares numbers, which have no starts, and files are named or paired beside it",
            "give --counts alone, or leave it out to compare files",
        )
    if len(given.counts) > len(LETTERS):
        raise ConfigError(f"got {len(given.counts)} systems, expected 1 to {len(LETTERS)}", "leave some out")
    systems = counts.parse(given.counts, given.best_of or ())
    found = counts.compare(systems)
    if given.json:
        print(json.dumps(counts_text.as_json(systems, found), indent=1))
        return 0
    console = make_console()
    console.table("success counts", counts_text.table(systems))
    for one in found:
        first, second = letters(one)
        console.say(f"\n{second} against {first}")
        for line in counts_text.lines(one, systems):
            console.say(line)
    if more := counts_text.many_pairs(found):
        console.say(f"\n{more}")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.compare", description="Say whether success differs between evaluations."
    )
    parser.add_argument(
        "evaluations", nargs="*", metavar="EVALUATION",
        help="runs/NAME (its newest), runs/NAME@10 (after 10 iterations), a file runs/NAME/eval/000010.json, or a "
        "checkpoint that its run or embodied eval has evaluated; each is compared with each other one",
    )  # fmt: skip
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument("--unpaired", action="store_true", help="compare rates; do not pair episodes of equal starts")
    starts.add_argument(
        "--same-starts", action="store_true", help="equal numbers are equal starts, although the envs' arguments differ"
    )
    parser.add_argument(
        "--counts", nargs="+", metavar="K/N[,K/N…]",
        help="compare published counts in place of evaluations, one for each system: successes/episodes, several "
        "trainings (seeds) of a system with commas",
    )  # fmt: skip
    parser.add_argument(
        "--best-of", nargs="+", metavar="N",
        help="with --counts: of how many evaluations (checkpoints) the count of the last system is the best; or a "
        "number for each system",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap over tasks (default: 0)")
    parser.add_argument("--json", action="store_true", help="print every number as JSON")
    return parser


# -- tables ----------------------------------------------------------------------------------------------------------


def show(console: Console, evaluations: Sequence[WrittenEvaluation], pairs: Pairs) -> None:
    """Prints which evaluations there are, then each comparison, and of several all in one table."""
    rows = [
        [letter, str(one.file), str(one.conditions.get("weights", "")), *(_not_run(one) or [])]
        for letter, one in zip(LETTERS, evaluations, strict=False)
    ]
    console.table("evaluations", rows)
    for one in pairs.comparisons:
        _show(console, one)
    for (first, second), error in pairs.refused:
        console.say(f"\n{LETTERS[second]} was not compared with {LETTERS[first]}: {error.message}")
    if len(pairs.comparisons) > 1:
        head = ["pair", "difference", "95 % interval", "p", "by Holm", ""]
        console.table("\nall pairs, over all tasks", [head, *(_summed_up(one) for one in pairs.comparisons)])
        console.say(chance(len(pairs.comparisons)))


def _summed_up(one: Comparison) -> list[str]:
    row, names = one.over_all, letters(one)
    p_values = [p_value(one.p_value), p_value(one.adjusted)]
    verdict = "differ" if one.differ else "not told apart"
    return [f"{names[1]} against {names[0]}", f"{row.difference:+.1%}", interval(row), *p_values, verdict]


def _not_run(one: WrittenEvaluation) -> list[str]:
    return [f"{one.not_run} planned episodes were not run, and count neither way"] if one.not_run else []


def _show(console: Console, one: Comparison) -> None:
    names = letters(one)
    console.say(f"\n{names[1]} against {names[0]}")
    for line in protocols(one, names):
        console.say(line)
    if one.differing:
        head = ["condition", *names, ""]
        rows = [[row.key, _short(row.first), _short(row.second), row.remark] for row in one.differing]
        console.table("CONDITIONS DIFFER; success is a result under its conditions:", [head, *rows])
    elif not one.notes:
        console.say("the same conditions")
    for note in one.notes:
        console.say(f"note: {note}")
    console.say(starts(one, names))
    console.table("success", table(one, names))
    if varied := compare_kinds.by_kind(one):
        console.table("success by kind and strength; p is that of each row alone", compare_kinds.table(varied, names))
    for line in lines(one, names):
        console.say(line)
    for name, side in zip(names, (one.first, one.second), strict=True):
        if best := chosen(side):
            console.say(best.text(name))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


# -- JSON ------------------------------------------------------------------------------------------------------------


def all_as_json(pairs: Pairs, count: int) -> dict[str, Any]:
    """Converts all comparisons of ``count`` evaluations to JSON values."""
    whole: dict[str, Any] = {"comparisons": [as_json(one) for one in pairs.comparisons]}
    if count > 2:
        whole["not_compared"] = [
            {"first": LETTERS[first], "second": LETTERS[second], "because": error.message}
            for (first, second), error in pairs.refused
        ]
    return whole


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Converts a comparison to JSON values."""
    sides = {
        name: {"name": side.name, "file": str(side.file), "weights": side.conditions.get("weights"),
               "starts": count, "not_run": side.not_run, "chosen": (best := chosen(side)) and asdict(best),
               "protocol": {key: side.protocol.get(key) for key in ("name", "hash")}}
        for name, side, count in zip(
            ("first", "second"), (comparison.first, comparison.second), comparison.starts, strict=True
        )
    }  # fmt: skip
    low, high = comparison.over_tasks or (None, None)
    return {
        **sides, "same_protocol": same_protocol(comparison.first, comparison.second),
        "conditions_that_differ": [asdict(row) for row in comparison.differing], "notes": list(comparison.notes),
        "paired": not comparison.unpaired, "unpaired_because": comparison.unpaired or None,
        "shared_starts": comparison.shared, "tasks": [asdict(row) for row in comparison.tasks],
        "over_all": asdict(comparison.over_all),
        "kinds": [compare_kinds.as_json(row) for row in compare_kinds.by_kind(comparison)],
        "gained": comparison.gained, "lost": comparison.lost,
        "test": "fisher" if comparison.unpaired else "mcnemar", "p_value": comparison.p_value,
        "p_value_holm": comparison.adjusted, "over_tasks": {"low": low, "high": high}, "differ": comparison.differ,
        "more_starts": None if comparison.more is None else comparison.more._asdict(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(piped(main))
