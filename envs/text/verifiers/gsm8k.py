"""The number at the end of a worked solution: how problems in the manner of GSM8K are answered."""

from __future__ import annotations

import re

from ..verdict import Problem, Verdict
from .answers import number, text_of
from .failures import VerifierFailed

MARK = "####"
_WRITTEN = re.compile(r"(?<![\w.)])-?\s?\$?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|-?\$?\.[0-9]+")


def last_number(text: str) -> str | None:
    """The last number of a text, without thousands separators and dollar signs.

    >>> last_number("4 times $1,250 is -$5,000.")
    '-5000'
    """
    found = None
    for match in _WRITTEN.finditer(text):
        found = match[0]
    return None if found is None else re.sub(r"[\s$,]", "", found)


class Gsm8k:
    """Compares the number after the last ``####`` with the answer, by value; else the last number of the response.

    Args:
        strict: a response without ``####`` is wrong.
    """

    bounded = True

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data holds no number."""
        answer = last_number(text_of(problem).rpartition(MARK)[2])
        if answer is None:
            raise VerifierFailed(f"the answer {text_of(problem)[:60]!r} holds no number")
        before, mark, after = response.rpartition(MARK)
        found = _first_number(after) if mark else None if self._strict else last_number(after)
        right = found is not None and (found == answer or (number(found) is not None and number(found) == number(answer)))
        return Verdict(float(right), right)


def _first_number(text: str) -> str | None:
    match = _WRITTEN.search(text)
    return None if match is None else re.sub(r"[\s$,]", "", match[0])
