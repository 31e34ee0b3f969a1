"""The scorer that a task of reasoning-gym brings along."""

from __future__ import annotations

import math
from typing import Any

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .answers import canonical
from .choice import last_tagged

ENTRY, SCORER = "entry", "scorer"
"""Fields of a problem: the item as reasoning-gym made it, and ``score_answer(answer, entry)`` → 0 to 1 of its task."""


class ReasoningGym:
    """Verifier that calls a reasoning-gym task's scorer: ``problem.fields["scorer"](answer, problem.fields["entry"])``.

    The answer is what stands in the last ``<answer>…</answer>``, else the whole response without white space around it.

    Args:
        success_at: score from which on a response is right. Tasks give a part of 1 for good form, and for answers that
            are nearly right.
    """

    bounded = False

    def __init__(self, success_at: float = 1.0) -> None:
        self._success_at = success_at

    def load(self) -> None:
        """Does nothing: the scorer is there already."""

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the problem has no scorer, or its score is no number."""
        if missing := {ENTRY, SCORER} - set(problem.fields):
            raise VerifierFailed(f"the problem has no {' and no '.join(sorted(missing))}: it is none of reasoning-gym")
        tagged = last_tagged(response, "answer")
        answer = (response if tagged is None else tagged).strip()
        score: Any = problem.fields[SCORER](answer, problem.fields[ENTRY])
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise VerifierFailed(f"its scorer gave {score!r}, expected a number")
        return Verdict(float(score), float(score) >= self._success_at, canonical(answer))
