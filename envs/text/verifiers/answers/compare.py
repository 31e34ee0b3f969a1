"""Whether two answers that were read are equal, and one spelling for equal ones."""

from __future__ import annotations

from .values import Answer

_ONE_NAME = ({"angle", "celsius"}, {"angle", "fahrenheit"}, {"mass", "sterling"})
"""Dimensions whose units are called the same: degrees, pounds."""


def equal(first: Answer, second: Answer) -> bool:
    """Returns whether two parsed answers are equal. A unit or a name that one of them leaves out does not count, others
    must agree."""
    if not first.whole or not second.whole:
        return False
    if first.items and second.items:
        return _equal_items(first, second)
    if "letter" in (first.kind, second.kind):
        return first.kind == second.kind and first.key == second.key and _agree(first.label, second.label)
    if first.kind == second.kind == "clock":
        return first.key == second.key and (first.label == second.label or _of_24_hours(first.key))
    if _written(first) == _written(second):
        return True
    if first.items or second.items or first.kind == "text" or second.kind == "text":
        return False
    return _agree(first.label, second.label) and _equal_values(first, second)


def _equal_items(one: Answer, other: Answer) -> bool:
    """Order does not count. In a set repetitions do not either, and it may be written without its braces."""
    if len(one.items) != len(other.items):
        return False
    return all(equal(left, right) for left, right in zip(one.items, other.items, strict=True))


def _equal_values(one: Answer, other: Answer) -> bool:
    if one.unit is None or other.unit is None:
        return one.key == other.key and "measure" not in (one.kind, other.kind)
    if one.unit.dimension == other.unit.dimension:
        if one.value is not None and other.value is not None:
            return one.value * one.unit.factor == other.value * other.unit.factor
        return one.key == other.key and one.unit.factor == other.unit.factor
    named = {"degrees", "lb"} & {one.unit.name, other.unit.name}
    return one.key == other.key and bool(named) and {one.unit.dimension, other.unit.dimension} in _ONE_NAME


def _written(answer: Answer) -> str:
    return answer.whole.replace(" ", "") if answer.kind != "text" else answer.key


def _agree(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


def _of_24_hours(key: str) -> bool:
    """Whether an hour says by itself which half of the day it is in."""
    hour = int(key.partition(":")[0])
    return hour > 12 or hour == 0


def spelling(answer: Answer) -> str:
    """Returns a parsed answer's spelling, without unit and name."""
    if answer.value is not None:
        return str(answer.value)
    if answer.items:
        inside = ",".join(spelling(item) for item in answer.items)
        return inside if answer.kind == "list" else rf"\{{{inside}\}}"
    if answer.kind == "clock" and answer.label is not None:
        return f"{answer.key} {answer.label}"
    return answer.key.strip()


def spelling_beside(answer: Answer, gold: Answer) -> str:
    """Returns a spelling of an answer to compare with the gold answer's: the same if they are equal, another one if
    they are not."""
    if equal(answer, gold):
        return spelling(gold)
    found = spelling(answer)
    return found if found != spelling(gold) else f"{found} ({answer.whole})"
