"""Initial states of tasks, which are read once for all tasks that share a file."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ..files import INSTALL, LiberoTask, read_init_states
from .files import INSTALL as INSTALL_PLUS

_read = functools.lru_cache(maxsize=256)(read_init_states)


class InitialStates:
    """Initial states of tasks, by number. A rearranged task of LIBERO-Plus has one in a file of its own, which is read
    when it is played: one that is damaged keeps no other task from being played.

    Raises:
        AssetsMissingError: a file is damaged or not there.
    """

    def __init__(self, tasks: Sequence[LiberoTask]) -> None:
        self._tasks = tasks
        self._known = {number: _states_of(task) for number, task in enumerate(tasks) if not task.rearranged}

    @property
    def counts(self) -> tuple[int, ...]:
        """Initial states of each task."""
        return tuple(len(self._known[number]) if number in self._known else 1 for number in range(len(self._tasks)))

    def __getitem__(self, number: int) -> np.ndarray:
        """Returns a task's initial states, float64 [n, 1 + nq + nv] (time s, positions, velocities)."""
        return self._known[number] if number in self._known else _states_of(self._tasks[number])


def _states_of(task: LiberoTask) -> np.ndarray:
    return _read(task.init_states_file, task.rearranged, INSTALL if task.variation is None else INSTALL_PLUS)
