"""Envs that offer ``preload()`` and ``builds()``, well or badly behaved."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
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


reserved: list[mmap.mmap] = []


class Reserves(FakeEnv):
    """Reserves, once loaded, more memory than the machine has, of which it uses nothing; Linux joins the parts."""

    def preload(self) -> None:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        reserved.extend(mmap.mmap(-1, whole * 3 // 4, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2))

    def prepare(self) -> WorkerFacts:
        return WorkerFacts(os.getpid(), "none", "a fake env")


built: list[str] = []
"""What was built ahead in this process, or in the one that it was forked from."""


class Builds(Preloaded):
    """Builds ahead what it is asked for. Some words misbehave: ``raises``, ``thread``, ``hangs``."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self._words = words

    def builds(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for word in self._words:
            yield word, partial(_build, word)

    def prepare(self) -> WorkerFacts:
        facts = super().prepare()
        return replace(facts, extra={**facts.extra, "built": " ".join(built)})


def _build(word: str) -> None:
    if word == "raises":
        raise MemoryError("no room for it")
    if word == "thread":
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    if word == "hangs":
        time.sleep(3600)
    built.append(word)


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
