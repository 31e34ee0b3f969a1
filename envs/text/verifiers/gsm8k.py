"""The number at the end of a worked solution: how problems in the manner of GSM8K are answered."""

from __future__ import annotations

import re

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .answers import canonical, read, spelling, text_of
from .answers.characters import digits

MARK = "####"
_WRITTEN = re.compile(
    r"(?<![\w.)])-?\\?\$?-?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"(?:[eE][+-]?[0-9]{1,4}(?![\w.])|/[0-9]+(?![0-9]*[/\w]))?"
    r"|-?\$?\.[0-9]+(?:[eE][+-]?[0-9]{1,4}(?!\w))?"
)
_LINE = re.compile(r"\s*([^\n]{1,200})")


def numbers(text: str) -> list[str]:
    """Lists all numbers of a text, without thousands separators and dollar signs.

    >>> numbers("4 times $1,250 is $5,000.")
    ['4', '1250', '5000']
    """
    plain = digits(text).replace("{,}", ",").replace(r",\!", ",")
    return [re.sub(r"[$,\\]", "", written) for written in _WRITTEN.findall(plain)]


def final_number(text: str) -> str | None:
    """Finds the final number of a response: after the last ``####`` the value of the line, else the first number in it.
    Without the mark the last number; None if there is none.

    >>> told("#### 5 of 7"), told("#### 5 1/2 cups"), told("5 of 7")
    ('5', '11/2', '7')
    """
    _, mark, after = text.rpartition(MARK)
    if mark and (line := _LINE.match(after)) and (value := read(line[1])).value is not None:
        return spelling(value)
    found = numbers(after)
    return found[0 if mark else -1] if found else None


class Gsm8k:
    """Verifier that compares the number after the last ``####`` with the answer, by value; else the last number of the
    response. The answer is read in the same way.

    Args:
        strict: a response without ``####`` is wrong.
    """

    bounded = True

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data holds no number."""
        answer = final_number(text_of(problem))
        if answer is None:
            raise VerifierFailed(f"the answer {text_of(problem)[:60]!r} holds no number")
        found = None if self._strict and MARK not in response else final_number(response)
        said = "" if found is None else canonical(found)
        right = bool(said) and said == canonical(answer)
        return Verdict(float(right), right, said)
