"""A robot of files: its worker and its safe stop write what happens, and when. Workers find this module through the
launcher's sys.path."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied.errors import SpecMismatchError
from embodied.testing import FakeEnv
from embodied.types import Start, WorkerFacts


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
