"""The letter of a single choice."""

from __future__ import annotations

import re

from embodied.errors import ConfigError

from ..verdict import Problem, Verdict
from .answers import last_boxed, text_of
from .failures import VerifierFailed

LETTERS = "ABCDEFGHIJ"


class Choice:
    """Compares the chosen letter with that of the answer: ``B``, ``(B)`` or ``B. Paris``.

    The letter is looked for in this order; the last one of a kind counts:

    1. at the beginning of the last ``\\boxed{…}``, else of the last ``<answer>…</answer>``, in either case
    2. after "answer is", "answer:", "choice is", e.g. in "the correct answer is **(B)**"
    3. alone on a line, in either case
    4. in parentheses

    A single "A" or "I" within a sentence is no choice.

    Args:
        letters: those that may be chosen.
    """

    bounded = True

    def __init__(self, letters: str = LETTERS) -> None:
        if not re.fullmatch(r"[A-Z]{2,26}", str(letters)) or len(set(letters)) < len(letters):
            raise ConfigError(
                f"letters is {letters!r}, expected two or more different capital letters", 'set letters, e.g. "ABCD"'
            )
        either = f"[{letters}{letters.lower()}]"
        self._first = re.compile(rf"[^0-9A-Za-z]{{0,20}}(?:text[^0-9A-Za-z])?({either})(?![0-9A-Za-z])")
        self._said = re.compile(
            rf"(?i:\b(?:answer|choice)\b(?:\s(?:is|would be|must be))?)[\s:*_(\[$]{{1,8}}([{letters}])(?![0-9A-Za-z'])"
        )
        self._alone = re.compile(rf"(?m)^[^0-9A-Za-z\n]{{0,20}}({either})[^0-9A-Za-z\n]{{0,20}}$")
        self._bracketed = re.compile(rf"\(([{letters}])\)")

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data begins with none of the letters."""
        answer = self._first.match(text_of(problem))
        if answer is None:
            raise VerifierFailed(f"the answer {text_of(problem)[:60]!r} does not begin with a letter of a choice")
        chosen = self.chosen(response)
        right = chosen == answer[1].upper()
        return Verdict(float(right), right, chosen or "")

    def chosen(self, response: str) -> str | None:
        """The letter that a response chooses; None if it is not to be found."""
        marked = last_boxed(response)
        if marked is None:
            marked = last_tagged(response, "answer")
        if marked is not None and (first := self._first.match(marked)):
            return first[1].upper()
        for pattern in (self._said, self._alone, self._bracketed):
            if found := pattern.findall(response):
                return str(found[-1]).upper()
        return None


def last_tagged(text: str, tag: str) -> str | None:
    """What stands in the last ``<tag>…</tag>``; None if there is none."""
    before, end, _ = text.rpartition(f"</{tag}>")
    _, begin, inside = before.rpartition(f"<{tag}>")
    return inside if end and begin else None
