"""Writes a comparison of published success counts as text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from embodied.evaluation.comparison_text import LETTERS, chance, p_value
from embodied.evaluation.counts import Pair, System
from embodied.observe.published import Mean


def table(systems: Sequence[System]) -> list[list[str]]:
    """Makes a table of the systems: a head, then a row for each with its intervals."""
    several, chosen = any(len(one.counts) > 1 for one in systems), any(one.is_chosen for one in systems)
    head = ["", "reported", "95 % interval"]
    head += ["mean over trainings", "its 95 % interval"] if several else []
    head += ["best of", "worth", "95 % interval"] if chosen else []
    rows = []
    for letter, one in zip(LETTERS, systems, strict=False):
        row = [letter, f"{one.total[0]}/{one.total[1]} ({one.rate:.1%})", _range(one.interval)]
        row += _seeds(one.over_trainings, len(one.counts)) if several else []
        row += _worth(one) if chosen else []
        rows.append(row)
    return [head, *rows]


def _seeds(mean: Mean | None, trainings: int) -> list[str]:
    return ["1 training", ""] if mean is None else [f"{mean.mean:.1%} of {trainings}", _range((mean.low, mean.high))]


def _worth(one: System) -> list[str]:
    if not one.is_chosen:
        return ["", "", ""]
    return [str(one.best_of), f"{one.worth:.1%}", _range(one.corrected) if one.corrected else "see over trainings"]


def lines(pair: Pair, systems: Sequence[System]) -> Iterator[str]:
    """Yields the lines on a pair: as reported, corrected, over trainings, the verdict, episodes that are needed."""
    first, second = (LETTERS[place] for place in pair.places)
    one, other = (systems[place] for place in pair.places)
    several = len(one.counts) + len(other.counts) > 2
    begin = "as reported, all episodes as if of one training" if several else "as reported"
    yield f"{begin}: {pair.difference:+.1%} ({_signed(pair.interval)}); Fisher's exact test: {p_value(pair.p_value)}"
    if pair.expected is not None:
        yield (
            f"by luck alone: of {other.best_of} checkpoints that are as good as {first} ({one.rate:.1%}), the best is "
            f"expected at {pair.expected:.1%}, and at {other.total[0]}/{other.total[1]} or above with probability "
            f"{pair.chance:.2g}"
        )
    if one.is_chosen or other.is_chosen:
        yield from _corrected(pair)
    if pair.seeds is not None:
        yield _over_seeds(pair.seeds)
    elif several:
        yield "over trainings: not known, one of them has a single training; intervals above count episodes alone"
    if len(systems) > 2 and pair.adjusted is not None:
        yield f"for all pairs (Holm): {p_value(pair.adjusted)}"
    yield _verdict(pair, first, second)
    yield from _needed(pair, one.is_chosen or other.is_chosen)


def _corrected(pair: Pair) -> Iterator[str]:
    if pair.corrected is None:
        yield "each training has a best of its own: only the numbers over trainings are corrected"
        return
    yield (
        f"corrected for the choice (Šidák): {pair.left:+.1%} is left, interval {_signed(pair.corrected)}; "
        f"{p_value(pair.corrected_p)}"
    )


def _over_seeds(mean: Mean) -> str:
    p = "" if mean.p_value is None else f"; {p_value(mean.p_value)}"
    return f"over trainings (Welch): {mean.mean:+.1%} ({_signed((mean.low, mean.high))}){p}"


def _verdict(pair: Pair, first: str, second: str) -> str:
    if pair.differ:
        better = "more" if pair.direction > 0 else "less"
        return f"{second} succeeds {better} often than {first}"
    return f"these numbers do not tell {first} and {second} apart"


def _needed(pair: Pair, chosen: bool) -> Iterator[str]:
    begin = "episodes of each that show it four times of five: "
    texts = [f"{_many(pair.needed.reported)} for a true difference of {pair.difference:+.1%}"]
    if chosen:
        texts.append(f"{_many(pair.needed.left)} for {pair.left:+.1%}, if both are evaluated anew, without a choice")
    if abs(pair.difference) > 1e-9:
        yield begin + "; ".join(texts)


def _many(count: int | None) -> str:
    return "more than ten million" if count is None else f"{count:,}"


def _range(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


def _signed(interval: tuple[float, float]) -> str:
    return f"{interval[0]:+.1%} to {interval[1]:+.1%}"


def many_pairs(pairs: Sequence[Pair]) -> str:
    """Returns a sentence on how the tests of several pairs are corrected; empty for one."""
    return chance(len(pairs)) if len(pairs) > 1 else ""


def as_json(systems: Sequence[System], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Converts systems and their comparisons to JSON values."""
    rows = [
        {"name": letter, "counts": [list(count) for count in one.counts], "best_of": one.best_of, "rate": one.rate,
         "interval": one.interval, "worth": one.worth, "corrected_interval": one.corrected,
         "over_trainings": _json_of(one.over_trainings)}
        for letter, one in zip(LETTERS, systems, strict=False)
    ]  # fmt: skip
    found = [
        {**asdict(one), "places": [LETTERS[place] for place in one.places], "seeds": _json_of(one.seeds),
         "differ": one.differ}
        for one in pairs
    ]  # fmt: skip
    return {"systems": rows, "comparisons": found}


def _json_of(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else mean._asdict()
