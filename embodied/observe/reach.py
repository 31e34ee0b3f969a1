"""Whether the success of training episodes says anything: they may be cut before any success.

Training episodes are out of reach of a success while all of this holds:

- no training episode of the run has succeeded;
- evaluations of the run have seen successes, and the fastest took more control steps than a training episode has.

It is what the run has measured, no proof. So a success that does happen is shown, with all others, from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

SUCCESS = "rollout/success_rate"
INTERVAL = ("rollout/success_low", "rollout/success_high")
FASTEST = "eval/time_to_success_min"


@dataclass
class Reach:
    """Judges from the metrics of a run, iteration by iteration.

    Args:
        limit: control steps at which training episodes are cut off; infinite: at none that is known.
    """

    limit: float = inf
    fastest: float = inf  # control steps of the fastest success of an evaluation
    solved: bool = False  # a training episode has succeeded

    def take(self, row: Mapping[str, float]) -> None:
        """Takes the metrics of an iteration."""
        self.solved |= row.get(SUCCESS, 0.0) > 0
        self.fastest = min(self.fastest, row.get(FASTEST, inf))

    @property
    def out(self) -> bool:
        """Whether a success of training episodes would be a first."""
        return not self.solved and self.limit < self.fastest < inf

    def shown(self, row: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics without the success of training episodes while that is out of reach."""
        return {name: value for name, value in row.items() if not (self.out and name in (SUCCESS, *INTERVAL))}

    @property
    def why(self) -> str:
        """Says why the success of training episodes is left out."""
        return (
            f"the success of training episodes is left out: they end after {self.limit:g} control steps, and the "
            f"fastest success of an evaluation took {self.fastest:g}; if one does succeed, it is shown from then on"
        )


def actions(sampled: bool) -> str:
    """Names how the actions of episodes are drawn, as it stands beside each success.

    >>> actions(True), actions(False)
    ('sampled', 'greedy')
    """
    return "sampled" if sampled else "greedy"
