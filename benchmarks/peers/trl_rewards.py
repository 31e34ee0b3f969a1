"""Reward functions of ``math_steps.py`` in TRL's signature, which ``verifier=[{name: custom}]`` takes as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SEPARATOR = ";"  # before the result


def right_result(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
    """1 for each completion with the right integer after the last separator, else 0."""
    return [float(_result(text) == right) for text, right in zip(completions, answer, strict=True)]


def varied(completions: Sequence[str], **_: Any) -> list[float]:
    """A number in [0, 1) that differs from text to text and means nothing, so that every group has an advantage."""
    return [sum(place * ord(letter) for place, letter in enumerate(text, 1)) % 997 / 997 for text in completions]


def _result(text: str) -> str:
    _, separator, after = text.rpartition(SEPARATOR)
    return after.strip() if separator else ""
