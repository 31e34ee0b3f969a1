"""Envs that misbehave, for workers and for ``check_env``. Workers find this module through the launcher's sys.path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError, RendererUnavailableError, SpecMismatchError
from embodied.testing import FakeBatchEnv, FakeEnv
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


class SlowToDraw(FakeEnv):
    """Its observations take 5 ms each."""

    def observe(self, out: Obs) -> None:
        time.sleep(0.005)
        super().observe(out)


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


class NoState(FakeEnv):
    get_state = set_state = None  # type: ignore[assignment]


class StateIsRefused(FakeEnv):
    """Takes a state and does not take it back."""

    def set_state(self, state: Any) -> None:
        raise SpecMismatchError("this state is not taken back", "mend set_state")


class NeverTheSame(FakeEnv):
    """Pictures, states and rewards of an env without a simulator's discipline, such as a robot."""

    random = np.random.default_rng(0)

    def observe(self, out: Obs) -> None:
        super().observe(out)
        for values in out.values():
            values[...] = self.random.integers(2, 200, values.shape)

    def step(self, action: np.ndarray) -> StepResult:
        return super().step(action)._replace(reward=self.random.random())


class NeverTheSameAndForgetful(NeverTheSame):
    """… and it leaves out a field."""

    def observe(self, out: Obs) -> None:
        super().observe({**out, "state": out["state"].copy()})


class ExpertOutside(FakeEnv):
    """Its expert's numbers are out of range, or of another dtype."""

    def expert(self) -> Iterator[np.ndarray]:
        for action in super().expert():
            yield action + np.asarray(9, action.dtype)


class FloatFrame(FakeEnv):
    def frame(self) -> np.ndarray:
        return super().frame() / 255


class RewardIsNan(FakeEnv):
    def step(self, action: np.ndarray) -> StepResult:
        return StepResult(float("nan"), False, False)


class StateIsNan(FakeEnv):
    def observe(self, out: Obs) -> None:
        super().observe(out)
        out["state"][1] = np.nan


class StateIsNanLater(FakeBatchEnv):
    """Its second observation has a number that is none, as of a simulator that has diverged."""

    def observe(self, out: Obs) -> None:
        super().observe(out)
        if self._steps:
            out["state"][1] = -np.inf


class TellsMore(FakeEnv):
    def step(self, action: np.ndarray) -> StepResult:
        return super().step(action)._replace(info={"answer": 1})


class TupleFromStep(FakeEnv):
    def step(self, action: np.ndarray) -> Any:
        return 0.0, False, False


class NoRendererInReset(FakeEnv):
    def reset(self, start: Start) -> None:
        raise RendererUnavailableError("no renderer in this reset", "none is needed")


class NoFilesOfATask(FakeEnv):
    """A task that says of itself in its resets what it lacks."""

    def __init__(self, lacking: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lacking = lacking

    def reset(self, start: Start) -> None:
        if start.task_id == self._lacking:
            raise AssetsMissingError("its file is damaged", "reinstall it")
        super().reset(start)


class FailsOnce(FakeEnv):
    """Fails as FakeEnv does, but only the first of all workers that comes to it."""

    def __init__(self, marker: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._marker = marker

    def _misbehave(self) -> None:
        if self._steps == self._fault_step and self._start.task_id == self._fault_task and first_to_make(self._marker):
            super()._misbehave()


class StartsOnlyAtFirst(FakeEnv):
    """The first ``first_starts`` workers start, any later one hangs."""

    def __init__(self, marker: str, first_starts: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._marker, self._first_starts = marker, first_starts

    def prepare(self) -> WorkerFacts:
        if not any(first_to_make(f"{self._marker}{n}") for n in range(self._first_starts)):
            time.sleep(3600)
        return super().prepare()


class DiesAtStart(FakeEnv):
    """The workers that start as number … (from 1) of all die at it."""

    started = False

    def __init__(self, marker: str, dies: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._marker, self._dies = marker, dies

    def prepare(self) -> WorkerFacts:
        if not DiesAtStart.started:  # a worker prepares each of its slots
            DiesAtStart.started = True
            if next(n for n in range(1, 100) if first_to_make(f"{self._marker}{n}")) in self._dies:
                os._exit(3)
        return super().prepare()


def first_to_make(path: str) -> bool:
    """Whether this process is the first of all to make the file ``path``."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class WaitsForFile(FakeEnv):
    """Resets of task 1 wait for a file."""

    def __init__(self, file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._file = file

    def reset(self, start: Start) -> None:
        super().reset(start)
        while start.task_id == 1 and not os.path.exists(self._file):
            time.sleep(0.01)


class Heavy(FakeEnv):
    """Holds 100 MB from its first reset on, as a simulator does."""

    def reset(self, start: Start) -> None:
        self.scene = np.ones(100_000_000, np.uint8)
        super().reset(start)
