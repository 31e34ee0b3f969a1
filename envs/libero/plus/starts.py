"""Initial states of tasks, which are read once for all tasks that share a file, and what they and the scenes say."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from ..files import INSTALL, LiberoTask, read_init_states, words_in
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

    def digests(self) -> Mapping[str, str]:
        """Returns file → digest of its numbers or words, however they are stored. Of LIBERO-Plus, whose version is
        fixed and which has thousands of scenes, the tasks are read by their names, and no scene and no file with one
        initial state is."""
        found = {}
        for number, states in self._known.items():
            file = self._tasks[number].init_states_file
            name = f"{file.parent.name}/{file.name.partition('.')[0]} (initial states)"
            if name not in found:
                found[name] = _digest(repr(states.shape).encode(), np.ascontiguousarray(states).tobytes())
        for task in self._tasks:
            if task.variation is None:
                found[f"{task.bddl_file.parent.name}/{task.bddl_file.name}"] = _digest(words_in(task.bddl_file))
        varied = [task.name for task in self._tasks if task.variation is not None]
        return {**found, "names of tasks": _digest("\n".join(varied).encode())} if varied else found

    def __getitem__(self, number: int) -> np.ndarray:
        """Returns a task's initial states, float64 [n, 1 + nq + nv] (time s, positions, velocities)."""
        return self._known[number] if number in self._known else _states_of(self._tasks[number])


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _states_of(task: LiberoTask) -> np.ndarray:
    return _read(task.init_states_file, task.rearranged, INSTALL if task.variation is None else INSTALL_PLUS)
