"""A deterministic env without a simulator that hosts all slots of a worker, as GPU simulators do."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import numpy as np

from embodied.testing.env import FakeEnv
from embodied.types import Obs, Start, StepResult


class FakeBatchEnv(FakeEnv):
    """:class:`FakeEnv` with its slots in batches; episodes equal those of single envs bit by bit."""

    def batch(self, num_slots: int) -> FakeBatch:
        return FakeBatch([copy.copy(self) for _ in range(num_slots)])

    def advance(self, action: np.ndarray, active: bool) -> StepResult:
        """Make a control step that takes no time; a point that is not active drifts off."""
        self._steps += 1
        if not active:
            return self._move(action + 0.5 if self._directions is None else action)
        self._misbehave()
        return self._move(action)

    @property
    def pace(self) -> float:
        """Seconds that a control step of this episode should take."""
        return self._pace


class FakeBatch:
    """Slots of :class:`FakeBatchEnv` that move together. Slots that are not active move as well, as in simulators: one
    that is left behind in the middle of its episode ends up elsewhere. A control step takes as long as the slowest
    active slot."""

    def __init__(self, copies: Sequence[FakeBatchEnv]) -> None:
        self._copies = copies

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        for slot, start in zip(slots, starts, strict=True):
            self._copies[slot].reset(start)

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        if pace := max((self._copies[slot].pace for slot in np.flatnonzero(active).tolist()), default=0.0):
            time.sleep(pace)
        return [one.advance(*given) for one, *given in zip(self._copies, actions, active, strict=True)]

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        for slot, out in zip(slots, outs, strict=True):
            self._copies[slot].observe(out)

    def progress_features(self, slot: int) -> np.ndarray:
        return self._copies[slot].progress_features()

    def frame(self, slot: int) -> np.ndarray:
        return self._copies[slot].frame()

    def close(self) -> None:
        for one in self._copies:
            one.close()
