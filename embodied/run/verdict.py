"""What a comparison of evaluations comes to, in words: which starts were compared, the tests, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator

from embodied.run.compare import Comparison, Row, same_protocol
from embodied.run.evaluations import Evaluation

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Names of evaluations in a text: the first is A."""


def protocols(one: Comparison, letter: str) -> list[str]:
    """Says under which protocols both were evaluated; empty where a file does not say it."""
    if (same := same_protocol(one.first, one.second)) is None:
        return []
    first, second = (protocol_of(side) for side in (one.first, one.second))
    return [f"one protocol: {first}" if same else f"DIFFERENT PROTOCOLS: {first} of A, {second} of {letter}"]


def protocol_of(one: Evaluation) -> str:
    """Name and hash of the protocol that an evaluation was made under."""
    return f"{one.protocol.get('name') or 'no name'} ({one.protocol.get('hash')})" if one.protocol else "not recorded"


def starts(one: Comparison, letter: str) -> str:
    """Says which starts are compared."""
    first, second = one.starts
    if one.unpaired:
        return f"UNPAIRED, {one.unpaired}: {first} starts of A and {second} of {letter}, taken as different ones"
    left = "" if first == second == one.shared else "; the others are left out"
    return f"{one.shared} of A's {first} starts and of {letter}'s {second} have a partner{left}"


def lines(one: Comparison, letter: str) -> Iterator[str]:
    """Yields the tests and what they come to."""
    holm = "" if one.adjusted == one.p_value else f", {p_value(one.adjusted)} by Holm"
    if not one.unpaired:
        yield (
            f"{letter} did better on {one.gained} starts and worse on {one.lost}; exact McNemar test: "
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
    yield verdict(one, letter)


def verdict(one: Comparison, letter: str) -> str:
    """Says whether success differs, or how many more episodes would tell."""
    row = one.over_all
    on = "" if not one.differing else ", under the conditions above"
    if one.differ:
        better = "more" if row.difference > 0 else "less"
        return f"{letter} succeeds {better} often than A: {row.difference:+.1%} ({interval(row)}){on}"
    begin = f"not enough episodes to tell A and {letter} apart{on}: {row.difference:+.1%} ({interval(row)})"
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
    return f"(In all: env.eval.episodes_per_task={wanted}{beyond}.)"


def interval(row: Row) -> str:
    """The 95 % interval of a difference."""
    return f"{row.low:+.1%} to {row.high:+.1%}"


def p_value(value: float | None) -> str:
    """A p-value in words."""
    return "p unknown" if value is None else "p < 0.0001" if value < 1e-4 else f"p = {value:.4f}"
