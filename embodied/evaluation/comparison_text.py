"""Writes a comparison of evaluations as text: the starts that were compared, the table, the tests, the verdict.

``names`` are what both are called in the text: letters, or words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from embodied.evaluation.compare import Comparison, Rate, Row, same_protocol
from embodied.evaluation.results import WrittenEvaluation

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of evaluations in a text: the first is A."""

Names = tuple[str, str]


def letters(one: Comparison) -> Names:
    """Returns the letters that name both evaluations."""
    first, second = one.places
    return LETTERS[first], LETTERS[second]


def chance(count: int) -> str:
    """Explains how the tests are corrected for several comparisons."""
    return (
        f"{count} pairs were tested. Each test alone calls one in twenty equal pairs different, so among many pairs "
        "some differences are found by chance. Holm's p-values hold the chance of any false alarm at 5 %; verdicts use "
        "them. Intervals are not corrected: each is that of one pair."
    )


def table(one: Comparison, names: Names) -> list[list[str]]:
    """Returns success of both by task: a head, which says how actions were drawn, then a row for each task and one over
    all."""
    both = zip((one.first.drawn, one.second.drawn), names, strict=True)
    drawn = ["" if how == name else how for how, name in both]
    head = ["task", names[0], drawn[0], names[1], drawn[1], "difference", "95 % interval"]
    return [head, *(cells(row) for row in (*one.tasks, one.over_all))]


def cells(row: Row) -> list[str]:
    """Returns a row of such a table."""
    return [row.task, *of_rate(row.first), *of_rate(row.second), f"{row.difference:+.1%}", interval(row)]


def of_rate(rate: Rate) -> list[str]:
    """Returns success with its interval, as two cells."""
    return [f"{rate.successes}/{rate.episodes} ({rate.rate:.0%})", f"{rate.low:.0%} to {rate.high:.0%}"]


def protocols(one: Comparison, names: Names) -> list[str]:
    """Says under which protocols both were evaluated; empty where a file does not say it."""
    if (same := same_protocol(one.first, one.second)) is None:
        return []
    first, second = (protocol_of(side) for side in (one.first, one.second))
    return [f"one protocol: {first}" if same else f"DIFFERENT PROTOCOLS: {first} of {names[0]}, {second} of {names[1]}"]


def protocol_of(one: WrittenEvaluation) -> str:
    """Name and hash of the protocol that an evaluation was made under."""
    return f"{one.protocol.get('name') or 'no name'} ({one.protocol.get('hash')})" if one.protocol else "not recorded"


def starts(one: Comparison, names: Names) -> str:
    """Says which starts are compared."""
    first, second = one.starts
    if one.unpaired:
        counted = f"{first} starts of {names[0]} and {second} of {names[1]}"
        return f"UNPAIRED, {one.unpaired}: {counted}, taken as different ones"
    left = "" if first == second == one.shared else "; the others are left out"
    return f"{one.shared} of {names[0]}'s {first} starts and of {names[1]}'s {second} have a partner{left}"


def lines(one: Comparison, names: Names) -> Iterator[str]:
    """Yields the tests and what they come to."""
    holm = "" if one.adjusted == one.p_value else f", {p_value(one.adjusted)} by Holm"
    if not one.unpaired:
        yield (
            f"{names[1]} did better on {one.gained} starts and worse on {one.lost}; exact McNemar test: "
            f"{p_value(one.p_value)}{holm}"
        )
    elif one.p_value is not None:
        yield f"Fisher's exact test: {p_value(one.p_value)}{holm}"
    else:
        yield "no p-value: there are several episodes of a start; the interval counts starts"
    if one.over_tasks is None:
        yield "one task: nothing is known of how the difference varies over tasks"
    else:
        few = ", which are few for it" if len(one.tasks) < 5 else ""
        low, high = one.over_tasks
        yield f"over tasks (bootstrap of {len(one.tasks)}{few}): {low:+.1%} to {high:+.1%}"
    yield verdict(one, names)


def verdict(one: Comparison, names: Names) -> str:
    """Says whether success differs, or how many more episodes would decide it."""
    row = one.over_all
    on = "" if not one.differing else ", under the conditions above"
    if one.differ:
        better = "more" if row.difference > 0 else "less"
        return f"{names[1]} succeeds {better} often than {names[0]}: {row.difference:+.1%} ({interval(row)}){on}"
    begin = f"not enough episodes to tell {names[0]} and {names[1]} apart{on}: {row.difference:+.1%} ({interval(row)})"
    if one.more is None:
        if abs(row.difference) > 1e-12:
            return f"{begin}. Not even ten million more of each would do if the difference stays what it is."
        return f"{begin}. Both succeeded equally often: more episodes narrow the interval, and tell nothing apart."
    just, likely = max(1, one.more.just), max(1, one.more.likely)
    what = "episodes" if row.first.starts == row.first.episodes else "starts"
    return (
        f"{begin}. {just:,} more {what} of each would do if the difference stays what it is; with {likely:,} more, a "
        f"true difference of this size is seen four times of five. {_how(one, just)}"
    )


def _how(one: Comparison, more: int) -> str:
    tasks = len(one.tasks)
    wanted = math.ceil((max(one.over_all.first.starts, one.over_all.second.starts) + more) / tasks)
    states = [*one.first.initial_states, *one.second.initial_states]
    few = [count for count in states if 1 < count < wanted]
    beyond = f"; a task has {min(few)} initial states, beyond which they repeat with other seeds" if few else ""
    if few and one.first.starts_without_seed and not one.first.conditions.get("sampling", {}).get("do_sample", True):
        beyond = (
            f"; there are {min(few)} problems, and a greedy answer to one does not change: more problems are needed"
        )
    return f"(In all: env.eval.episodes_per_task={wanted}{beyond}.)"


def interval(row: Row) -> str:
    """The 95 % interval of a difference."""
    return f"{row.low:+.1%} to {row.high:+.1%}"


def p_value(value: float | None) -> str:
    """A p-value in words."""
    return "p unknown" if value is None else "p < 0.0001" if value < 1e-4 else f"p = {value:.4f}"
