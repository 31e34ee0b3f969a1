"""A run that comes first ends in order when the run that it is for is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAVES = """#!/bin/sh
trap 'echo saved > saved; exit 0' TERM
echo $$ > pid.part && mv pid.part pid
while :; do sleep 0.05; done
"""
PARENT = """
from types import SimpleNamespace
from embodied.run import sft_first
from embodied.runtime.signals import StopSignal
sft_first.sys = SimpleNamespace(executable="./saves")
sft_first._make([], StopSignal())
"""
LIMIT_S = 60.0


def until(file: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while not file.exists():
        assert time.monotonic() < end, f"there is no {file.name}"
        time.sleep(0.02)


def test_it_saves_when_its_run_is_killed(tmp_path):
    (tmp_path / "saves").write_text(SAVES, encoding="utf-8")
    (tmp_path / "saves").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path, env=environment)
    try:
        until(tmp_path / "pid")
    finally:
        run.kill()
        run.wait()
    try:
        until(tmp_path / "saved")
    finally:
        with suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text(encoding="utf-8")), signal.SIGKILL)
