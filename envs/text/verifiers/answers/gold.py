"""The answer that the data has for a problem: as text, and as what it says."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ...failures import VerifierFailed
from ...verdict import Problem
from .boxes import last_boxed
from .reading import read
from .values import Answer

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_TABLE = re.compile(
    r"[\s$]*(?:\\\[)?(?:[^\n\\]{1,20}=\s*)?\\begin\{(cases|array|[pbvBV]?matrix)\}.*\\end\{\1\}(?:\\\])?[\s$.]*",
    re.DOTALL,
)
"""Cases and matrices, whose cells may hold words."""
_COMMANDS = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\*?\}|\\(?:[a-zA-Z]+|.)|[$&{}]")
_WORDS = re.compile(r"(?<!\S)[^\s=<>+*/^|()\[\]]+(?!\S)")
_HAN = re.compile("[\u4e00-\u9fff]")  # characters of which some two make a word, without spaces between
_SOLVES = re.compile(r"\b(?:answer is|therefore|hence|thus|so the|which gives|we get|we have)\b", re.IGNORECASE)
_MOST_WORDS, _LEAST_WORDS = 8, 4
"""A text of more words is a worked solution, and one of as many as the second that ends like a sentence."""


def text_of(problem: Problem) -> str:
    """Returns the problem's gold answer as text; of a list with one entry, that entry.

    Raises:
        VerifierFailed: the data has none, or one that is no single answer.
    """
    return _text(problem.answer)


def _text(answer: Any) -> str:
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        if (len(answer) == 1 and not isinstance(answer[0], Sequence | Mapping)) or _is_one_text(answer):
            return _text(answer[0])
        raise VerifierFailed(f"the answer is a list of {len(answer)} entries, {_shown(answer)}, expected one answer")
    if isinstance(answer, Mapping | bytes | set):
        raise VerifierFailed(f"the answer is a {type(answer).__name__}, {_shown(answer)}, expected a text or a number")
    text = "" if answer is None else _number(answer) if isinstance(answer, float | Decimal) else str(answer).strip()
    if not text:
        raise VerifierFailed("the problem has no answer")
    return text


def _is_one_text(answer: Sequence[Any]) -> bool:
    return len(answer) == 1 and isinstance(answer[0], str)


def _number(answer: float | Decimal) -> str:
    """A number without an exponent."""
    if not math.isfinite(answer):
        raise VerifierFailed(f"the answer is {answer}, which is no number")
    return format(Decimal(str(answer)), "f")


def _shown(answer: Any) -> str:
    return repr(answer)[:60]


def gold_of(problem: Problem) -> Answer:
    r"""Parses the problem's gold answer: what stands in its last ``\boxed{…}``, else all of it.

    Raises:
        VerifierFailed: there is none, or what stands there is a worked solution and no answer.
    """
    text = text_of(problem)
    inside = last_boxed(text)
    if inside is None and (why := _no_answer(text)):
        raise VerifierFailed(f"the answer {text[:60]!r} {why}")
    found = read(text if inside is None else inside)
    if not found.whole:
        raise VerifierFailed(f"the answer {text[:60]!r} says nothing")
    return found


def _no_answer(text: str) -> str | None:
    """Why a text without a box is no answer; None if it is one."""
    if _BOX.search(text):
        return "has a box that is never closed"
    if "####" in text:
        return "is a worked solution with ####, which the verifier gsm8k reads"
    found = read(text)
    if _TABLE.fullmatch(text) or all(item.kind != "text" for item in (found.items or (found,))):
        return None
    words = len(_WORDS.findall(_COMMANDS.sub(" ", text))) + len(_HAN.findall(text)) // 2
    ends = words >= _LEAST_WORDS and text.rstrip()[-1] in ".!?\u3002\uff01"
    if words > _MOST_WORDS or ends or "\n" in text.strip() or (words >= _LEAST_WORDS and _SOLVES.search(text)):
        return "is a text of several words, and has no box"
    return None
