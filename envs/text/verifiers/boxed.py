"""The answer in the last box: how problems in the manner of MATH are answered."""

from __future__ import annotations

from ..verdict import Problem, Verdict
from .answers import equal, gold_of, last_boxed, read, spelling_beside


class Boxed:
    r"""Verifier that compares the content of the last ``\boxed{…}`` with the answer, which may stand in a box too.

    Both are read as values of a kind (:mod:`.answers`): numbers are compared exactly, expressions as they are written.
    It knows no algebra: for ``x+1`` against ``1+x`` take ``math``.
    """

    bounded = True

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the answer in the data is a worked solution without a box."""
        gold, said = gold_of(problem), read(last_boxed(response) or "")
        right = equal(gold, said)
        return Verdict(float(right), right, spelling_beside(said, gold))
