"""Envs that offer ``preload()``, well or badly behaved."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from embodied.testing import FakeEnv
from embodied.types import WorkerFacts

preloaded_by = 0
"""Process that called ``preload``."""


class Preloaded(FakeEnv):
    """Tells in which process it was preloaded, and what its global random generator gives."""

    def preload(self) -> None:
        global preloaded_by
        preloaded_by = os.getpid()

    def prepare(self) -> WorkerFacts:
        extra = {"by": str(preloaded_by), "parent": str(os.getppid()), "draw": str(np.random.random())}
        return WorkerFacts(os.getpid(), "none", "a fake env", extra)


class StartsThread(Preloaded):
    def preload(self) -> None:
        super().preload()
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


class RaisesInPreload(Preloaded):
    def preload(self) -> None:
        super().preload()
        raise RuntimeError("no such simulator")


class CrashesInPreload(Preloaded):
    def preload(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class HangsInPreload(Preloaded):
    """Makes the file ``marker`` first."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self._marker = marker

    def preload(self) -> None:
        Path(self._marker).touch()
        time.sleep(3600)
