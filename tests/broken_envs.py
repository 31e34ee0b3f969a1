"""Envs that misbehave, for workers and for ``check_env``. Workers find this module through the launcher's sys.path."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from embodied.errors import RendererUnavailableError
from embodied.testing import FakeEnv
from embodied.types import Obs, Start, StepResult, WorkerFacts


class NoRenderer(FakeEnv):
    def prepare(self) -> WorkerFacts:
        raise RendererUnavailableError("no renderer in this test", "none is needed")


class ExitsInPrepare(FakeEnv):
    def prepare(self) -> WorkerFacts:
        print("the last words of the simulator")
        os._exit(7)


class HangsInPrepare(FakeEnv):
    def prepare(self) -> WorkerFacts:
        time.sleep(3600)
        raise AssertionError


class HangsInReset(FakeEnv):
    def reset(self, start: Start) -> None:
        time.sleep(3600)


class UnwrittenField(FakeEnv):
    def observe(self, out: Obs) -> None:
        super().observe({**out, "state": out["state"].copy()})


class NondeterministicReset(FakeEnv):
    resets = 0

    def reset(self, start: Start) -> None:
        super().reset(start)
        self._point += self.resets
        self.resets += 1


class ForgetfulState(FakeEnv):
    def set_state(self, state: Any) -> None:
        pass


class FloatFrame(FakeEnv):
    def frame(self) -> np.ndarray:
        return super().frame() / 255


class RewardIsNan(FakeEnv):
    def step(self, action: np.ndarray) -> StepResult:
        return StepResult(float("nan"), False, False)


class TupleFromStep(FakeEnv):
    def step(self, action: np.ndarray) -> Any:
        return 0.0, False, False
