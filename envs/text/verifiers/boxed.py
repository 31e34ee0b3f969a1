"""The answer in the last box: how problems in the manner of MATH are answered."""

from __future__ import annotations

from ..verdict import Problem, Verdict
from .answers import canonical, last_boxed, text_of


class Boxed:
    r"""Compares what stands in the last ``\boxed{…}`` with the answer, which may stand in a box too.

    Texts are compared after normalisation, numbers by value: ``\boxed{0.50}`` answers ``\frac{1}{2}``. It knows no
    algebra: for ``x+1`` against ``1+x`` take ``math``. A percent sign does not count: ``10\%`` is ``10``, not ``0.1``.
    """

    bounded = True

    def __call__(self, problem: Problem, response: str) -> Verdict:
        answer = text_of(problem)
        inside, found = last_boxed(answer), last_boxed(response)
        said = canonical(found or "")
        right = bool(said) and said == canonical(answer if inside is None else inside)
        return Verdict(float(right), right, said)
