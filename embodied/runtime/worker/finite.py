"""Refuses observations whose numbers are not finite: a simulator that diverges gives them, and no policy can answer."""

from __future__ import annotations

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.types import EnvSpec, Obs, Start


class FiniteNumbers:
    """Checks the floating-point fields of an env's observations."""

    def __init__(self, spec: EnvSpec) -> None:
        self._names = [name for name, field in spec.obs.items() if field.dtype.startswith("float")]

    def check(self, out: Obs, steps: int, start: Start) -> None:
        """Raises :class:`SpecMismatchError` if a number is not finite.

        Args:
            out: the observation after ``steps`` control steps from ``start``.
        """
        for name in self._names:
            if not np.isfinite(out[name]).all():
                values = np.ravel(out[name])
                first = int(np.flatnonzero(~np.isfinite(values))[0])
                raise SpecMismatchError(
                    f"number {first} of the observation's {name} is {values[first]} after {steps} control steps (task "
                    f"{start.task_id}, seed {start.seed}), expected finite numbers",
                    "have the env's observe() write finite numbers, or end the episode (terminated) in the step where "
                    "the simulator diverges: its last observation is not read then, unless "
                    "algorithm.bootstrap_type=always or ignore_terminations=true asks for it",
                )
