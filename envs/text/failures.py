"""Failures: calls of a verifier that give no verdict. One costs one response its reward, most of many end the run.

A long run meets responses that nobody has thought of, and must not end with one of 10⁵. A verifier that is wrong itself
fails on most responses, and must not go unnoticed while a policy learns from rewards of 0. So a failure is counted and
said, and the share of failures among the latest responses decides (:class:`Tolerant`).
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable

from embodied.errors import ConfigError

from .verdict import Problem, Verdict, Verifier

KINDS = ("errors", "timeouts", "deaths")
"""errors: it raised, or gave no number; timeouts: it did not end in time; deaths: its process ended."""
WINDOW = 100
TOO_MANY = 50
"""More failures than this among the latest ``WINDOW`` responses end the run. Until then a verifier with a time limit of
10 s has cost one worker 500 s."""
SHOWN = 200
"""Characters of a response that a message shows."""


class VerifierFailed(Exception):
    """A verifier could not judge a response; the text says why."""

    def __init__(self, why: str, kind: str = "errors") -> None:
        super().__init__(why, kind)
        self.why, self.kind = why, kind


class Tolerant:
    """Wraps a verifier: where it fails, gives ``failure_reward`` and no success, counts it, and writes it to the
    worker's log.

    Args:
        label: names the verifier in messages.
        on_error: ``zero`` does so with each failure; ``raise`` ends the run with the first of kind errors. Timeouts and
            deaths depend on the response, and are always tolerated.
        failure_reward: lower than what a wrong answer gets if rewards are negative. Else a policy learns to make the
            verifier fail.
        reads: raises :class:`VerifierFailed` of a problem whose answer the verifier cannot read, at once; None = only a
            verdict tells.
    """

    def __init__(
        self, verifier: Verifier, label: str, on_error: str = "zero", failure_reward: float = 0.0,
        reads: Callable[[Problem], object] | None = None,
    ) -> None:  # fmt: skip
        self._verifier, self._label, self._on_error, self._reads = verifier, label, on_error, reads
        self._verdict = Verdict(failure_reward, False, failures=1)
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`ConfigError` if too many of the latest responses have no verdict, or with ``on_error: raise``
        this one."""
        try:
            verdict = self._verifier(problem, response)
        except VerifierFailed as failure:
            return self._failed(failure, problem, response)
        self._recent.append(False)
        return verdict

    def unreadable(self, problem: Problem) -> str | None:
        """Returns why no response to this problem could be judged; None if one could, or if only asking tells."""
        try:
            if self._reads is not None:
                self._reads(problem)
        except VerifierFailed as failure:
            return failure.why
        return None

    def _failed(self, failure: VerifierFailed, problem: Problem, response: str) -> Verdict:
        self.counts[failure.kind] += 1
        self._recent.append(True)
        failed = sum(self._recent)
        text = (
            f"verifier {self._label} gave no verdict on problem {problem.number}: {failure.why}\n"
            f"  the response has {len(response)} characters and begins {response[:SHOWN]!r}"
        )
        if failed > TOO_MANY:
            raise ConfigError(
                f"{text}\n  {failed} of the latest {len(self._recent)} responses have no verdict",
                "correct the verifier, or the answers in the data; if verdicts only come late, raise verify_timeout_s",
            )
        if failure.kind == "errors" and self._on_error == "raise":
            raise ConfigError(
                text, "correct the verifier or the data, or count such responses as wrong with on_error: zero"
            )
        print(text, file=sys.stderr, flush=True)
        return self._verdict
