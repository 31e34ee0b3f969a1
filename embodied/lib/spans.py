"""Whole numbers as short texts: ``0-3,8-11``."""

from __future__ import annotations

from collections.abc import Iterable


def as_spans(numbers: Iterable[int], most: int | None = None) -> str:
    """Formats ascending numbers.

    Args:
        most: spans that are shown; None = all.

    >>> as_spans([0, 1, 2, 5, 7, 8]), as_spans(range(0, 64, 2), most=3)
    ('0-2,5,7-8', '0,2,4,…')
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in spans]
    return ",".join(texts if most is None or len(texts) <= most else [*texts[:most], "…"])
