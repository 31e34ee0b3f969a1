"""A sum of verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..failures import Tolerant
from ..verdict import Problem, Verdict
from .guarded import Guarded
from .remote import Remote


@dataclass(frozen=True)
class Part:
    """One verifier of a weighted sum, with its weight and bounds."""

    verifier: Tolerant
    weight: float
    limited: Guarded | Remote | None = None  # part that has a time limit
    scale: float | None = None  # a right response is worth this, a wrong one minus this; None = its score

    clip_min: float = -math.inf  # lower bound of the weighted reward
    clip_max: float = math.inf

    def worth(self, verdict: Verdict) -> float:
        """Returns the weighted reward of a verdict, within the bounds."""
        reward = verdict.reward
        if self.scale is not None:
            reward = self.scale if verdict.success else -self.scale
        return min(max(self.weight * reward, self.clip_min), self.clip_max)


class Weighted:
    """Verifier that sums the weighted rewards of several; success and answer are those of one of them.

    Args:
        decides: number of the part whose success and answer count.
    """

    def __init__(self, parts: Sequence[Part], decides: int) -> None:
        self._parts, self._decides = tuple(parts), decides

    def __call__(self, problem: Problem, response: str) -> Verdict:
        verdicts = [part.verifier(problem, response) for part in self._parts]
        reward = sum(part.worth(verdict) for part, verdict in zip(self._parts, verdicts, strict=True))
        deciding = verdicts[self._decides]
        failures = sum(verdict.failures for verdict in verdicts)
        return Verdict(reward, deciding.success, deciding.answer, failures)

    def unreadable(self, problem: Problem) -> str | None:
        """Returns why no response to this problem could be judged, such as an answer without a number in it; None if
        one could, or if only a verifier in a process of its own can tell."""
        reasons = (part.verifier.unreadable(problem) for part in self._parts)
        return next((why for why in reasons if why is not None), None)

    @property
    def counts(self) -> Counter[str]:
        """Responses without a verdict so far, summed over the parts: "errors", "timeouts", "deaths"."""
        return sum((part.verifier.counts for part in self._parts), Counter())

    @property
    def longest_s(self) -> float:
        """Seconds that the verdict on one response may take. The deadline of the env's step has to be longer."""
        return sum(part.limited.longest_s for part in self._parts if part.limited is not None)

    def load(self) -> None:
        """Imports and reads what verdicts need, so that the first one takes no longer than the others."""
        for part in self._parts:
            if part.limited is not None:
                part.limited.load()

    def close(self) -> None:
        """End the helper processes. A later call starts them again."""
        for part in self._parts:
            if isinstance(part.limited, Guarded):
                part.limited.close()
