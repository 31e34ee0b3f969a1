"""A run that is killed and resumed samples the bits that an uninterrupted one samples."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("killed_replay.py")
STEPS, KILLS = 60, 3


def start(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[3])}
    return subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(STEPS)], env=environment)


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def whole(folder: Path) -> dict[int, int]:
    """The checksum of each step; of a step that was made twice both are the same."""
    found: dict[int, int] = {}
    for line in lines(folder):
        step, summed = line.split()
        assert found.setdefault(int(step), int(summed)) == int(summed), f"step {step} read other records"
    return found


def test_a_killed_run_samples_the_same_bits(tmp_path):
    straight, killed, chance = tmp_path / "straight", tmp_path / "killed", random.Random(0)
    assert start(straight).wait(120) == 0
    for _ in range(KILLS):
        before, run = len(lines(killed)), start(killed)
        until = before + chance.randrange(1, STEPS // KILLS)
        while len(lines(killed)) < until and run.poll() is None:
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
        assert run.wait(60) in (-signal.SIGKILL, 0)
        if (log := killed / "log").exists() and not log.read_text(encoding="utf-8").endswith(
            "\n"
        ):  # a line may be cut off
            log.write_text(log.read_text(encoding="utf-8").rpartition("\n")[0] + "\n", encoding="utf-8")
    assert start(killed).wait(120) == 0
    expected = whole(straight)
    assert len(expected) == STEPS
    assert whole(killed) == expected
