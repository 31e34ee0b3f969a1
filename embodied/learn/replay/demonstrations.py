"""Demonstrations as entries of a memory, which are read and never written: the other half of symmetric sampling.

Every control step of a demonstrated episode begins a chunk of K actions. What follows an entry stands in the next one,
as in a ring. So an episode is told K times, each time with its chunks one action later:

    K = 2, five control steps:  │ a₀a₁ │ a₂a₃ │ a₄ · terminated │ a₁a₂ │ a₃a₄ terminated │

The last control step has the reward of a success and terminates, as where an env rewards success and ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Protocol

import numpy as np

from embodied.data.samples import SampleSource
from embodied.errors import SpecMismatchError
from embodied.learn.replay.segments import LARGE
from embodied.protocols import DEMONSTRATED
from embodied.types import ArraySpec

READ = 64  # samples that are read at a time
OWN_FIELDS = ("rewards", "num_steps", "terminated", "truncated", DEMONSTRATED)
"""Fields that an episode's length tells; all others are observed, done or told."""
Arrays = Mapping[str, np.ndarray]


class Entries(Protocol):
    """Interface of what transitions are read from: a ring, demonstrations, or both."""

    def __len__(self) -> int: ...

    @property
    def transitions(self) -> np.ndarray:
        """Indices of the entries that are transitions: int64, in order."""
        ...

    @property
    def demonstrated(self) -> np.ndarray:
        """Indices of the transitions that count as demonstrations: int64, in order."""
        ...

    def batch(self, index: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of entries int64 [n]: [n, …] each; of some fields or (None) all."""
        ...


class Demonstrated:
    """Entries of demonstrated episodes. All are transitions.

    Args:
        samples: of ``episodes`` with chunks of K, as :func:`embodied.data.samples.samples_of` numbers them.
        fields: of an entry.
        chunk: K.
        decided: fields of the decisions by which the policy would have acted so, [N, …] by the number of the sample.
        told: n instructions → fields that the policy makes of them.
        reward: of the success that ends each episode.
        whole_bytes: of fields that are copied with the large ones, such as pictures; others are read when they are
            drawn. It changes nothing but speed and memory.
        passed: called with the number of samples that were copied.

    Raises:
        SpecMismatchError: an entry lacks a field, or has it in another shape or dtype.
    """

    def __init__(
        self, samples: SampleSource, episodes: Sequence[Sized], fields: Mapping[str, ArraySpec], chunk: int,
        decided: Arrays, told: Callable[[list[str]], Arrays], reward: float = 1.0, whole_bytes: int = 0,
        passed: Callable[[int], None] = lambda count: None,
    ) -> None:  # fmt: skip
        self.fields, self._samples, self._chunk = dict(fields), samples, chunk
        self._kept, self._told, self._reward = dict(decided), told, reward
        self._of_texts: set[str] | None = None  # fields that are told, once they are known
        lengths = [len(episode) for episode in episodes]
        assert sum(lengths) == len(samples)
        begins = np.cumsum([0, *lengths])
        told_times = [
            begin + np.arange(phase, length, chunk)
            for begin, length in zip(begins, lengths, strict=False)
            for phase in range(min(chunk, length))
        ]
        self._sample = np.concatenate(told_times) if told_times else np.zeros(0, np.int64)
        self._left = np.repeat(begins[1:], lengths)[self._sample] - self._sample  # control steps to the end
        if len(self):
            self._check(self.batch(np.zeros(1, np.int64)))
            self._copy(whole_bytes, passed)

    def _copy(self, whole_bytes: int, passed: Callable[[int], None]) -> None:
        """Copies small fields, and large ones if all are few bytes: reading an episode takes longer than an update."""
        left = {name: spec for name, spec in self.fields.items() if name not in (*OWN_FIELDS, *self._kept)}
        whole = sum(spec.nbytes for spec in left.values()) * len(self) <= whole_bytes
        names = [name for name, spec in left.items() if whole or spec.nbytes < LARGE]
        copies = {name: np.empty((len(self), *left[name].shape), left[name].dtype) for name in names}
        for first in range(0, len(self), READ):
            samples = np.arange(first, min(first + READ, len(self)))
            for name, values in self._read(samples, names).items():
                copies[name][samples] = values
            passed(len(samples))
        self._kept |= copies

    def _check(self, one: Arrays) -> None:
        for name, spec in self.fields.items():
            if one[name].shape[1:] != spec.shape or one[name].dtype != np.dtype(spec.dtype):
                raise SpecMismatchError(
                    f"field {name} of demonstrations is {one[name].dtype} {list(one[name].shape[1:])}, in the run "
                    f"records {spec.dtype} {list(spec.shape)}",
                    "give env.train the observations and the controller with which they were made",
                )

    def __len__(self) -> int:
        return len(self._sample)

    @property
    def transitions(self) -> np.ndarray:
        """Indices of all entries."""
        return np.arange(len(self))

    @property
    def demonstrated(self) -> np.ndarray:
        """Indices of all entries."""
        return self.transitions

    def batch(self, index: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Reads entries int64 [n] from the episodes: [n, …] each. Pictures are read only if they are asked for.

        Raises:
            SpecMismatchError: demonstrations have no such field.
        """
        wanted = [*self.fields] if names is None else [*names]
        if not len(index):
            return {name: np.zeros((0, *self.fields[name].shape), self.fields[name].dtype) for name in wanted}
        samples = self._sample[index]
        found: dict[str, np.ndarray] = dict(self._numbers(self._left[index]))
        found |= {name: self._kept[name][samples] for name in wanted if name in self._kept}
        found |= self._read(samples, [name for name in wanted if name not in found])
        return {name: np.ascontiguousarray(found[name]) for name in wanted}

    def _read(self, samples: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Reads fields of n > 0 samples that instructions and observations tell."""
        found: dict[str, np.ndarray] = {}
        if self._of_texts is None or any(name in self._of_texts for name in names):
            found |= self._told(self._samples.instructions(samples))
            self._of_texts = set(found)
        if any(name not in found for name in names):
            found = self._samples.batch(samples) | found
        if missing := [name for name in names if name not in found]:
            raise SpecMismatchError(
                f"demonstrations have no {', '.join(missing)}, which a record of this run has",
                "choose demonstrations that were made with env.train's observations",
            )
        return {name: found[name] for name in names}

    def _numbers(self, left: np.ndarray) -> Arrays:
        """Fields that follow from the control steps ``left`` int64 [n] in the episode."""
        last = left <= self._chunk
        return {
            "rewards": np.float32(self._reward) * (np.arange(1, self._chunk + 1) == left[:, None]).astype(np.float32),
            "num_steps": np.minimum(left, self._chunk).astype(np.int32), "terminated": last,
            "truncated": np.zeros(len(left), bool), DEMONSTRATED: np.ones(len(left), bool),
        }  # fmt: skip


class Joined:
    """Demonstrations and a ring as one memory: the indices of the demonstrations come first.

    Example:
        ``joined.batch(symmetric(joined.own, joined.demonstrated, 128, seed, step, 256))``.
    """

    def __init__(self, shown: Entries, ring: Entries) -> None:
        self._shown, self._ring = shown, ring

    def __len__(self) -> int:
        return len(self._shown) + len(self._ring)

    @property
    def transitions(self) -> np.ndarray:
        """Indices of all transitions: int64, in order."""
        return np.concatenate([self._shown.transitions, self.own])

    @property
    def own(self) -> np.ndarray:
        """Indices of the ring's transitions, with those that count as demonstrations: int64, in order."""
        return self._ring.transitions + len(self._shown)

    @property
    def demonstrated(self) -> np.ndarray:
        """Indices of the demonstrations, and of the ring's transitions that count as such: int64, in order."""
        return np.concatenate([self._shown.demonstrated, self._ring.demonstrated + len(self._shown)])

    def batch(self, index: np.ndarray, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of entries int64 [n] of either: [n, …] each; of some fields or (None) all."""
        wanted = None if names is None else [*names]
        shown = index < len(self._shown)
        first = self._shown.batch(index[shown], wanted)
        second = self._ring.batch(index[~shown] - len(self._shown), wanted)
        found = {}
        for name in second:
            values = np.empty((len(index), *second[name].shape[1:]), second[name].dtype)
            values[shown], values[~shown] = first[name], second[name]
            found[name] = values
        return found
