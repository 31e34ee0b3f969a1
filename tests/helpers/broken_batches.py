"""Batch envs that misbehave, for workers and for ``check_batch_env``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from broken_envs import FailsOnce, SlowToDraw

from embodied.testing import FakeBatchEnv
from embodied.testing.batch import FakeBatch
from embodied.types import Obs, Start, StepResult


class FailsOnceTogether(FailsOnce, FakeBatchEnv):
    """The first of all workers whose slot comes to the fault fails."""


class SlowToDrawTogether(SlowToDraw, FakeBatchEnv):
    """Its observations take 5 ms each."""


class Counted(FakeBatch):
    """Prints what it is asked for: the worker's log then tells of rounds, resets and renders."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        print("reset", *slots, flush=True)
        super().reset(slots, starts)

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        print("step", *np.flatnonzero(active), flush=True)
        return super().step(actions, active)

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        print("observe", *slots, flush=True)
        super().observe(slots, outs)


class CountedEnv(FakeBatchEnv):
    def batch(self, num_slots: int) -> FakeBatch:
        return Counted(super().batch(num_slots)._copies)


class WantsNeutral(FakeBatch):
    """Fails when a slot that is not active is moved by anything but the neutral action."""

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        if np.any(actions[~active]):
            raise RuntimeError("a slot that is not active was moved")
        return super().step(actions, active)


class WantsNeutralEnv(FakeBatchEnv):
    def batch(self, num_slots: int) -> FakeBatch:
        return WantsNeutral(super().batch(num_slots)._copies)


class _ResetsAll(FakeBatch):
    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        super().reset(slots, starts)
        for copy in self._copies:
            copy.reset(Start(0, 0, 0))


class _OneNumberForAll(FakeBatch):
    """Draws the starts of all slots from one generator, one after another."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        super().reset(slots, starts)
        for place, slot in enumerate(slots):
            self._copies[slot]._point = self._copies[slot]._point + place


class _HeedsTheInactive(FakeBatch):
    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        return super().step(actions * active.mean(), active)


class _ForgetsASlot(FakeBatch):
    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        super().observe(slots[:-1] or slots, outs[: len(slots) - 1] or outs)


class _TooFew(FakeBatch):
    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        return [result for result, moves in zip(super().step(actions, active), active, strict=True) if moves]


class _FloatFrame(FakeBatch):
    def frame(self, slot: int) -> np.ndarray:
        return super().frame(slot) / 255


def env_of(kind: type[FakeBatch], **options: Any) -> FakeBatchEnv:
    """An env with batches of this kind."""

    class Env(FakeBatchEnv):
        def batch(self, num_slots: int) -> FakeBatch:
            return kind(super().batch(num_slots)._copies)

    return Env(**options)
