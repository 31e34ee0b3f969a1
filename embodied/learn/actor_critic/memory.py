"""The records that may be drawn: a ring of files of the run, of which host memory has a copy.

An entry is a record, or the last observation of an episode that was cut off (``num_steps`` 0). So what was observed
after an entry stands in the next one, and nothing is kept twice.

    … │ o₀ a₀ r₀ │ o₁ a₁ r₁ truncated │ o₂ (num_steps 0) │ o₀ a₀ r₀ │ o₁ a₁ r₁ terminated │ …

Reading an entry from the files takes some 26 µs, so that a batch would take as long as its update. Small fields are
therefore copied, and large ones, such as pictures, if all that the ring comes to is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from embodied.errors import ConfigError
from embodied.learn.replay.ring import Replay, most_records
from embodied.learn.replay.segments import LARGE, Layout
from embodied.protocols import CHUNK, DEMONSTRATED, ActorCritic, Policy
from embodied.schema import AlgorithmConfig, ReplayConfig
from embodied.types import ArraySpec, EnvSpec, EpisodeResult

WHOLE_BYTES = 1 << 32
"""A ring of at most so many bytes is copied with its large fields."""
READ = 1024  # entries that are read at a time


class Memory:
    """The entries of a ring. Index 0 is the oldest one that it holds.

    Args:
        whole_bytes: of a ring that is copied with its large fields. It changes nothing but speed and memory.
    """

    def __init__(self, ring: Replay, whole_bytes: int = WHOLE_BYTES) -> None:
        self.ring, self._whole_bytes, self._room = ring, whole_bytes, ring.room
        self._copies = self._laid_out()

    def _laid_out(self) -> dict[str, np.ndarray]:
        """Returns fields [n, …] for as many entries as the ring has room for."""
        whole = self._room * self.ring.record_bytes <= self._whole_bytes
        return {
            name: np.zeros((self._room, *spec.shape), spec.dtype)
            for name, spec in self.ring.fields.items()
            if whole or spec.nbytes < LARGE
        }

    def _grow(self) -> None:
        """Makes the copies as long as the ring, where more entries came than were expected."""
        if self.ring.room > self._room:
            before, self._room = self._copies, self.ring.room
            self._copies = self._laid_out()
            for name, array in self._copies.items():
                array[: len(before[name])] = before[name]

    def __len__(self) -> int:
        return len(self.ring)

    @property
    def transitions(self) -> np.ndarray:
        """Indices of the records whose next entry is there: int64, in order."""
        return self.ring.transitions

    @property
    def demonstrated(self) -> np.ndarray:
        """Indices of the transitions that count as demonstrations: int64, in order."""
        return self.ring.demonstrated

    def append(self, entries: Mapping[str, np.ndarray]) -> None:
        """Appends n entries, [n, …] each; the oldest leave the ring. Errors as of :meth:`Replay.append`."""
        self.ring.append(entries)
        kept = entries["num_steps"][-self.ring.capacity :]
        self._copy(np.arange(self.ring.total - len(kept), self.ring.total), entries)

    def _copy(self, numbers: np.ndarray, entries: Mapping[str, np.ndarray]) -> None:
        """Copies the last n of some entries. They have the ``numbers`` int64 [n]."""
        self._grow()
        if len(numbers):
            for name, array in self._copies.items():
                array[numbers % self.ring.capacity] = entries[name][-len(numbers) :]

    def batch(self, index: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of entries int64 [n]: [n, …] each; of some fields or (None) all. Errors as of
        :meth:`Replay.batch`."""
        wanted = [*self.ring.fields] if names is None else [*names]
        places = (self.ring.total - len(self) + index) % self.ring.capacity
        found = {name: self._copies[name][places] for name in wanted if name in self._copies}
        if large := [name for name in wanted if name not in found]:
            found |= self.ring.batch(index, large)
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Returns to the entries of a checkpoint (:meth:`Replay.load_state_dict`), and copies them."""
        self.ring.load_state_dict(state)
        self._grow()
        begin = self.ring.total - len(self)
        for first in range(0, len(self), READ):
            index = np.arange(first, min(first + READ, len(self)))
            self._copy(begin + index, self.ring.batch(index, self._copies))


def entry_fields(policy: Policy, env: EnvSpec, marked: bool) -> dict[str, ArraySpec]:
    """Returns the fields of what is remembered of a record: those that are read again.

    Args:
        policy: an :class:`embodied.protocols.ActorCritic`.
        marked: entries may count as demonstrations.
    """
    assert isinstance(policy, ActorCritic)
    spec, chunk = policy.spec, policy.spec.num_action_chunks
    told = policy.encode_instructions(env.tasks[:1])
    known = {**env.obs, **spec.decision}
    found = {name: known[name] for name in policy.reads() if name in known}
    for name in policy.reads():
        if name not in found:
            found[name] = ArraySpec(tuple(told[name].shape[1:]), str(told[name].dtype).removeprefix("torch."))
    return {
        **found, CHUNK: spec.decision[CHUNK], "rewards": ArraySpec((chunk,), "float32"),
        "num_steps": ArraySpec((), "int32"), "terminated": ArraySpec((), "bool"),
        **({DEMONSTRATED: ArraySpec((), "bool")} if marked else {}),
    }  # fmt: skip


def copied_bytes(fields: Mapping[str, ArraySpec], kept: ReplayConfig, records: int) -> int:
    """Computes the bytes of host memory that the copy of a ring takes to which ``records`` are appended."""
    one, room = Layout(fields, 1).record_bytes, min(most_records(fields, kept.capacity, kept.max_gb), records)
    return sum(spec.nbytes for spec in fields.values() if room * one <= WHOLE_BYTES or spec.nbytes < LARGE) * room


def check_capacity(fields: Mapping[str, ArraySpec], algorithm: AlgorithmConfig, processes: int) -> None:
    """Refuses a ring from which nothing would be learnt. Raises :class:`ConfigError`.

    Args:
        processes: that have a ring each.
    """
    kept, starts, one = algorithm.replay, algorithm.sac.learning_starts, Layout(fields, 1).record_bytes
    most = most_records(fields, kept.capacity, kept.max_gb)
    if kept.max_gb is not None and most * processes < starts:
        needed = math.ceil(starts / processes) * one
        raise ConfigError(
            f"algorithm.replay.max_gb {kept.max_gb:g} holds {most * processes} records of {one} bytes, fewer than "
            f"algorithm.sac.learning_starts {starts}: records would be dropped before anything is learnt from them",
            f"set algorithm.replay.max_gb to {needed / 10**9 * 1.01:.3g} or more, or lower "
            "algorithm.sac.learning_starts",
        )


def entries_of(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Copies the entries of episodes, whose records stand in a slab. They are in the order of the plan, whichever
    episode ended first."""
    ordered = sorted(results, key=lambda result: result.episode.episode_id)
    rows = np.array([row for result in ordered for row in _rows(result)], np.int64)
    return {name: arrays[name][rows] for name in names}


def with_marks(entries: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Adds the field :data:`DEMONSTRATED` to n entries: False where the slab does not say that a human acted."""
    marks = entries[DEMONSTRATED] if DEMONSTRATED in entries else np.zeros(len(entries["num_steps"]))
    return {**entries, DEMONSTRATED: marks.astype(bool)}


def clear(entries: Mapping[str, np.ndarray]) -> None:
    """Sets to 0 what no control step has filled: a slab has there what an earlier record left, which a resumed run
    has not. So the same seed keeps the same bytes."""
    steps = entries["num_steps"]
    entries["rewards"][np.arange(entries["rewards"].shape[1]) >= steps[:, None]] = 0
    entries["terminated"][steps == 0] = False
    entries[CHUNK][steps == 0] = 0
    if DEMONSTRATED in entries:
        entries[DEMONSTRATED][steps == 0] = False


def _rows(result: EpisodeResult) -> list[int]:
    return [*result.rows, *([result.final_row] if result.final_row >= 0 else [])]
