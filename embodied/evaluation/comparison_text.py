"""Writes a comparison of evaluations as text: the starts that were compared, the table, the tests, the verdict.

``names`` are what both are called in the text: letters, or words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from embodied.evaluation.compare import Comparison, Rate, Row, same_protocol
from embodied.evaluation.counts import Pair
from embodied.evaluation.results import WrittenEvaluation

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of evaluations in a text: the first is A."""

MOST_TASKS = 150
"""Rows of a table by task; of more only the last one, which is over all tasks, is printed."""

Names = tuple[str, str]


def letters(comparison: Comparison | Pair) -> Names:
    """Returns the letters under which a comparison's text names the two evaluations."""
    first, second = comparison.places
    return LETTERS[first], LETTERS[second]


def chance(count: int) -> str:
    """Returns a sentence on how the p-values of ``count`` comparisons are corrected."""
    return (
        f"{count} pairs were tested. Each test alone calls one in twenty equal pairs different, so among many pairs "
        "some differences are found by chance. Holm's p-values hold the chance of any false alarm at 5 %; verdicts use "
        "them. Intervals are not corrected: each is that of one pair."
    )


def table(comparison: Comparison, names: Names) -> list[list[str]]:
    """Makes a table of success by task for both evaluations: a head, which says how actions were drawn, then a row for
    each task and one over all; of more than :data:`MOST_TASKS` rows that one alone."""
    both = zip((comparison.first.drawn, comparison.second.drawn), names, strict=True)
    drawn = ["" if how == name else how for how, name in both]
    rows = [*comparison.tasks, comparison.over_all]
    head = ["task", names[0], drawn[0], names[1], drawn[1], "difference", "95 % interval"]
    return [head, *(cells(row) for row in (rows[-1:] if len(rows) > MOST_TASKS else rows))]


def cells(row: Row) -> list[str]:
    """Formats a row of the table of success by task."""
    return [row.task, *of_rate(row.first), *of_rate(row.second), f"{row.difference:+.1%}", interval(row)]


def of_rate(rate: Rate) -> list[str]:
    """Formats a success rate with its interval as two cells of a table."""
    return [f"{rate.successes}/{rate.episodes} ({rate.rate:.0%})", f"{rate.low:.0%} to {rate.high:.0%}"]


def protocols(comparison: Comparison, names: Names) -> list[str]:
    """Returns lines that name the protocols of both evaluations; none where a file does not name its protocol."""
    if (same := same_protocol(comparison.first, comparison.second)) is None:
        return []
    first, second = (protocol_of(side) for side in (comparison.first, comparison.second))
    return [f"one protocol: {first}" if same else f"DIFFERENT PROTOCOLS: {first} of {names[0]}, {second} of {names[1]}"]


def protocol_of(evaluation: WrittenEvaluation) -> str:
    """Returns name and hash of the protocol that an evaluation was made under, as text."""
    return (
        f"{evaluation.protocol.get('name') or 'no name'} ({evaluation.protocol.get('hash')})"
        if evaluation.protocol
        else "not recorded"
    )


def starts(comparison: Comparison, names: Names) -> str:
    """Returns a sentence on which starts the two evaluations are compared."""
    first, second = comparison.starts
    if comparison.unpaired:
        counted = f"{first} starts of {names[0]} and {second} of {names[1]}"
        return f"UNPAIRED, {comparison.unpaired}: {counted}, taken as different ones"
    lost = [(count - comparison.shared, name) for count, name in ((first, names[0]), (second, names[1]))]
    counts = " and ".join(f"{count:,} of {name}'s" for count, name in lost if count)
    left = f"; {counts} are left out" if counts else ""
    return f"{comparison.shared} of {names[0]}'s {first} starts and of {names[1]}'s {second} have a partner{left}"


def lines(comparison: Comparison, names: Names) -> Iterator[str]:
    """Yields the lines of a comparison that report the tests and their verdict."""
    holm = "" if comparison.adjusted == comparison.p_value else f", {p_value(comparison.adjusted)} by Holm"
    if not comparison.unpaired:
        yield (
            f"{names[1]} did better on {comparison.gained} starts and worse on {comparison.lost}; exact McNemar test: "
            f"{p_value(comparison.p_value)}{holm}"
        )
    elif comparison.p_value is not None:
        yield f"Fisher's exact test: {p_value(comparison.p_value)}{holm}"
    else:
        yield "no p-value: there are several episodes of a start; the interval counts starts"
    if comparison.over_tasks is None:
        yield "one task: nothing is known of how the difference varies over tasks"
    else:
        few = ", which are few for it" if len(comparison.tasks) < 5 else ""
        low, high = comparison.over_tasks
        yield f"over tasks (bootstrap of {len(comparison.tasks)}{few}): {low:+.1%} to {high:+.1%}"
    yield verdict(comparison, names)


def verdict(comparison: Comparison, names: Names) -> str:
    """Says whether success differs, or how many more episodes would decide it."""
    row = comparison.over_all
    on = "" if not comparison.differing else ", under the conditions above"
    if comparison.differ:
        better = "more" if row.difference > 0 else "less"
        return f"{names[1]} succeeds {better} often than {names[0]}: {row.difference:+.1%} ({interval(row)}){on}"
    begin = f"not enough episodes to tell {names[0]} and {names[1]} apart{on}: {row.difference:+.1%} ({interval(row)})"
    if comparison.more is None:
        if abs(row.difference) > 1e-12:
            return f"{begin}. Not even ten million more of each would do if the difference stays what it is."
        return f"{begin}. Both succeeded equally often: more episodes narrow the interval, and tell nothing apart."
    just, likely = max(1, comparison.more.just), max(1, comparison.more.likely)
    what = "episodes" if row.first.starts == row.first.episodes else "starts"
    return (
        f"{begin}. {just:,} more {what} of each would do if the difference stays what it is; with {likely:,} more, a "
        f"true difference of this size is seen four times of five. {_how(comparison, just)}"
    )


def _how(comparison: Comparison, more: int) -> str:
    tasks = len(comparison.tasks)
    wanted = math.ceil((max(comparison.over_all.first.starts, comparison.over_all.second.starts) + more) / tasks)
    states = [*comparison.first.initial_states, *comparison.second.initial_states]
    few = [count for count in states if 1 < count < wanted]
    beyond = f"; a task has {min(few)} initial states, beyond which they repeat with other seeds" if few else ""
    drawn = comparison.first.conditions.get("sampling", {})
    greedy = not drawn.get("do_sample", True) and "greedy_noise" not in drawn
    if few and comparison.first.starts_without_seed and greedy:
        beyond = (
            f"; there are {min(few)} problems, and a greedy answer to one does not change: more problems are needed"
        )
    return f"(In all: env.eval.episodes_per_task={wanted}{beyond}.)"


def interval(row: Row) -> str:
    """Formats the difference of two success rates with its 95 % interval."""
    return f"{row.low:+.1%} to {row.high:+.1%}"


def p_value(value: float | None) -> str:
    """Formats a p-value in words."""
    return "p unknown" if value is None else "p < 0.0001" if value < 1e-4 else f"p = {value:.4f}"
