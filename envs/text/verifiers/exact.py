"""The whole response is the answer."""

from __future__ import annotations

from ..verdict import Problem, Verdict
from .answers import text_of


class Exact:
    """Verifier that compares the response with the answer, without the white space around them.

    Args:
        ignore_case: compare without regard to case.
    """

    bounded = True

    def __init__(self, ignore_case: bool = False) -> None:
        self._ignore_case = ignore_case

    def __call__(self, problem: Problem, response: str) -> Verdict:
        one, other = text_of(problem), response.strip()
        if self._ignore_case:
            one, other = one.casefold(), other.casefold()
        return Verdict(float(one == other), one == other, other)
