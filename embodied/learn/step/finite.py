"""Guards against updates that are not finite: each is left out and counted, and too many in a row end the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied.errors import NumericalError


@dataclass
class FiniteUpdates:
    """Guards updates against a loss or gradient that is not finite; ends the run after ``limit`` such updates in a row.

    Args:
        limit: the run ends when this many updates in a row were not finite.
    """

    limit: int
    bad_in_a_row: int = 0
    last: str = "none yet"  # the last finite update, in words

    def accepts(self, loss: float, norm: float, version: int) -> bool:
        """Returns whether loss and gradient norm are finite.

        Args:
            version: of the weights that the update would make.

        Raises:
            NumericalError: ``limit`` updates in a row were not.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            self.bad_in_a_row = 0
            self.last = f"loss {loss:.4g}, gradient norm {norm:.4g} at weight version {version}"
            return True
        self.bad_in_a_row += 1
        if self.bad_in_a_row >= self.limit:
            raise NumericalError(
                f"loss {loss} and gradient norm {norm}: not finite for {self.bad_in_a_row} updates in a row; "
                f"last finite: {self.last}",
                "lower actor.optim.lr, or set actor.model.precision=fp32; the last checkpoint is from before this",
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        """Returns the counters that checkpoints keep."""
        return {"bad_in_a_row": self.bad_in_a_row, "last_finite": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned; other entries of ``state`` are left alone."""
        self.bad_in_a_row, self.last = int(state["bad_in_a_row"]), str(state["last_finite"])
