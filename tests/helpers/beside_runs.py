"""What tests of programs beside a run share: a console that remembers, waits that end, and a policy for exports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import ClassVar

import pytest

from embodied.observe.terminal.console import NullConsole
from embodied.run.folder.beside import beside, exports
from embodied.testing import FakePolicy

LONGEST_S = 60.0
"""That a test waits for anything."""
WAITS = "i=0; until test -e go || test $i -ge 3000; do i=$((i + 1)); sleep 0.02; done; "
"""Lines of shell that wait for a file."""


class Said(NullConsole):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Exportable(FakePolicy):
    export_formats: ClassVar = {"hf": "a folder"}

    def export(self, *args: object) -> None:
        raise AssertionError("the run itself exports nothing")


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end, f"not so within {LONGEST_S:g} s"
        time.sleep(0.01)


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs beside a run have the tests' priority: of the lowest one they hardly run on a busy machine."""
    monkeypatch.setattr(beside, "LOWEST", os.getpriority(os.PRIO_PROCESS, 0))
    monkeypatch.setattr(exports, "LONGEST_S", LONGEST_S)
