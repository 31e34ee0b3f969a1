"""The letter of a choice, or its letters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from embodied.errors import ConfigError

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .answers import last_boxed, read, text_of

LETTERS = "ABCDEFGHIJ"


_JOINED = r"\s{0,3}(?:,\s{0,3}(?:(?:and|or)\b\s{0,3})?|(?:;|/|&|\band\b|\bor\b)\s{0,3})"


class Choice:
    """Verifier that compares the chosen letters with those of the answer: ``B``, ``(B)``, ``Option B``, ``B. Paris``,
    ``B and C``.

    They are looked for in this order; the last place of a kind counts:

    1. in the last ``\\boxed{…}``, else in the last ``<answer>…</answer>``, in either case
    2. after "answer is", "answer:", "choice is", e.g. in "the correct answer is **(B)**"
    3. alone on a line, in either case
    4. in parentheses

    A single "A" or "I" within a sentence is no choice, and "A or B" is none of A.

    Args:
        letters: those that may be chosen.
    """

    bounded = True

    def __init__(self, letters: str = LETTERS) -> None:
        if not re.fullmatch(r"[A-Z]{2,26}", str(letters)) or len(set(letters)) < len(letters):
            raise ConfigError(
                f"letters is {letters!r}, expected two or more different capital letters", 'set letters, e.g. "ABCD"'
            )
        self._letters = frozenset(letters)
        one, small, more = f"[{letters}]", f"[{letters.lower()}]", f"[{letters.replace('I', '')}]"
        some = rf"{one}(?![0-9A-Za-z'])(?:\)?{_JOINED}\(?{more}(?![0-9A-Za-z'])){{0,25}}"
        self._small = re.compile(
            rf"[^0-9A-Za-z]{{0,20}}(?:(?:text(?:bf)?|math(?:rm|bf)|mbox)[^0-9A-Za-z]{{1,3}})?({small})"
            r"(?:[^0-9A-Za-z]{0,20}|[).:]\s.*)",
            re.DOTALL,
        )
        self._said = re.compile(
            rf"(?i:\b(?:answers?|choices?)\b(?:\s(?:is|are|would be|must be))?)"
            rf"(?i:(?:\soption|\schoice)?)[\s:*_(\[$]{{1,8}}({some})"
        )
        self._alone = re.compile(
            rf"(?m)^[^0-9A-Za-z\n]{{0,20}}(?:(?i:option|choice)\s)?\(?({some}|{small})[^0-9A-Za-z\n]{{0,20}}$"
        )
        self._bracketed = re.compile(rf"\(({one}\)(?:{_JOINED}\({one}\)){{0,25}})")

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data is no letter of a choice."""
        text = text_of(problem)
        boxed = last_boxed(text)
        answer = self._read(text if boxed is None else boxed)
        if answer is None:
            raise VerifierFailed(f"the answer {text[:60]!r} is no letter of a choice ({self._named})")
        chosen = self.chosen(response)
        right = chosen == answer
        return Verdict(float(right), right, chosen or "")

    def chosen(self, response: str) -> str | None:
        """Finds the letter that a response chooses, several as ``B,C``; None if there is none."""
        marked = last_boxed(response)
        if marked is None:
            marked = last_tagged(response, "answer")
        if marked is not None and (letters := self._read(marked)):
            return letters
        for pattern in (self._said, self._alone, self._bracketed):
            if found := pattern.findall(response):
                return self._of(re.findall(r"\b[A-Za-z]\b", found[-1]))
        return None

    def _read(self, marked: str) -> str | None:
        """The letters that a text is; None if it is something else."""
        marked = marked.strip().strip("*_`").strip()
        if small := self._small.fullmatch(marked):
            return self._of([small[1]])
        answer = read(marked)
        parts = answer.items or (answer,)
        return self._of([part.key for part in parts]) if all(part.kind == "letter" for part in parts) else None

    def _of(self, letters: Sequence[str]) -> str | None:
        chosen = {letter.upper() for letter in letters}
        return ",".join(sorted(chosen)) if chosen and chosen <= self._letters else None

    @property
    def _named(self) -> str:
        return "".join(sorted(self._letters))


def last_tagged(text: str, tag: str) -> str | None:
    """Finds the content of the last ``<tag>…</tag>``; None if there is none."""
    before, end, _ = text.rpartition(f"</{tag}>")
    _, begin, inside = before.rpartition(f"<{tag}>")
    return inside if end and begin else None
