"""A robot of files: its worker and its safe stop write what happens, and when. Workers find this module through the
launcher's sys.path."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied.errors import SpecMismatchError
from embodied.testing import FakeEnv
from embodied.types import Start, StepResult, WorkerFacts


class Unstoppable(FakeEnv):
    """A robot that nobody can stop."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._spec = replace(self._spec, retry_safe=False)


class Robot(Unstoppable):
    """Writes into ``folder``: ``workers`` (a pid a line, of each worker that prepared), ``stops`` (a line a safe stop:
    the state in which it found the last worker), ``misbehaves`` before a fault, ``closed``.

    Args:
        stop: what its safe stop does: "works", "raises" or "hangs".
        refuses: its reset raises an error that is explained.
    """

    def __init__(self, folder: str, stop: str = "works", refuses: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._folder, self._stop, self._refuses = Path(folder), stop, refuses

    def prepare(self) -> WorkerFacts:
        with (self._folder / "workers").open("a", encoding="utf-8") as file:
            print(os.getpid(), file=file)
        return super().prepare()

    def reset(self, start: Start) -> None:
        if self._refuses:
            raise SpecMismatchError("the gripper is not mounted", "mount it")
        super().reset(start)

    def _misbehave(self) -> None:
        if self._steps == self._fault_step:
            (self._folder / "misbehaves").touch()
        super()._misbehave()

    def safe_stop(self) -> None:
        with (self._folder / "stops").open("a", encoding="utf-8") as file:
            print(state_of(workers(self._folder)[-1]), file=file)
        if self._stop == "raises":
            raise RuntimeError("the brake does not answer")
        if self._stop == "hangs":
            time.sleep(3600)

    def close(self) -> None:
        (self._folder / "closed").touch()


class Helped(Robot):
    """A robot beside which a human stands: in its first episodes he moves it straight to the goal, from the second
    control step on. Writes ``resets`` (a line each: task, initial state, seed, and when it began and ended).

    Args:
        helped: episodes of a worker in which he does so.
        reset_s: seconds of a reset.
        fault_episode: the worker's episode in which its fault happens; None = in each.
        odd: what he is said to have done instead of an action; None = what he has done.
        declares: the spec says that he may.
    """

    def __init__(
        self, folder: str, helped: int = 2, reset_s: float = 0.0, odd: Any = None, declares: bool = True,
        fault_episode: int | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(folder, **kwargs)
        self._spec = replace(self._spec, interventions=declares)
        self._helped, self._reset_s, self._odd, self._episodes = helped, reset_s, odd, 0
        self._fault_episode = fault_episode

    def reset(self, start: Start) -> None:
        began = time.monotonic()
        super().reset(start)
        time.sleep(self._reset_s)
        self._episodes += 1
        with (self._folder / "resets").open("a", encoding="utf-8") as file:
            print(start.task_id, start.init_state_id, start.seed, began, time.monotonic(), file=file)

    def _misbehave(self) -> None:
        if self._fault_episode in (None, self._episodes):
            super()._misbehave()

    def step(self, action: np.ndarray) -> StepResult:
        if self._episodes > self._helped or self._steps < 1:
            return super().step(action)
        done = next(self.expert()).astype(np.float32)
        return super().step(done)._replace(intervention=done if self._odd is None else self._odd)


def resets(folder: Path) -> list[tuple[float, ...]]:
    """Task, initial state, seed of each reset, and the seconds when it began and ended."""
    lines = (folder / "resets").read_text(encoding="utf-8").splitlines()
    return [tuple(map(float, line.split())) for line in lines]


def workers(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "workers").read_text(encoding="utf-8").split()]


def stops(folder: Path) -> list[str]:
    """The state in which each safe stop found the worker: T = alive and frozen, gone = ended."""
    file = folder / "stops"
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does, or "gone"."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"
    return "gone" if state in "ZX" else state
