"""No verdict at all."""

from __future__ import annotations

from ..verdict import Problem, Verdict


class Zero:
    """Verifier that finds each response wrong and worth nothing, at once: for measuring how fast texts are made."""

    bounded = True

    def __call__(self, problem: Problem, response: str) -> Verdict:
        return Verdict(0.0, False)
