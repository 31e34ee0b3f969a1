"""LIBERO simulators are killed every few seconds of a training iteration: the same episodes, the same update."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_libero_run import SMALL, metrics

pytestmark = [pytest.mark.sim, pytest.mark.slow]

ENDURING = (*SMALL, "runner.max_epochs=1", "env.max_worker_restarts=1000", "env.train.max_episode_steps=24")


def workers_of(pid: int) -> list[int]:
    """Env workers that have been started by ``pid``, as far as they are still there."""
    found = []
    for child in (
        int(c) for p in Path(f"/proc/{pid}/task").glob("*/children") for c in p.read_text(encoding="utf-8").split()
    ):
        try:
            if b"start_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
        except OSError:
            continue
    return found


def train(folder: Path, name: str, kill: bool) -> tuple[str, int]:
    """Run one iteration; ``(what it printed, how many workers were killed)``."""
    command = [sys.executable, "-m", "embodied.train", *ENDURING, f"runner.experiment_name={name}"]
    killed, choose, log = 0, random.Random(0), folder / f"{name}.txt"
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(command, cwd=folder, stdout=output, stderr=output) as run,
    ):
        try:
            until, due = time.monotonic() + 900, 0.0
            while run.poll() is None and time.monotonic() < until:
                time.sleep(0.2)
                serving = "renderer: " in log.read_text(encoding="utf-8")  # the first start is not retried
                if not kill or not serving:
                    continue
                due = due or time.monotonic() + 2.0
                pids = workers_of(run.pid)
                if pids and time.monotonic() >= due:
                    os.kill(choose.choice(pids), signal.SIGKILL)
                    killed, due = killed + 1, time.monotonic() + choose.uniform(3.0, 9.0)
        finally:
            run.kill()
    assert run.returncode == 0, log.read_text(encoding="utf-8")
    return log.read_text(encoding="utf-8"), killed


def test_killed_simulators_change_no_number(tmp_path: Path) -> None:
    train(tmp_path, "calm", kill=False)
    said, killed = train(tmp_path, "chaos", kill=True)
    (calm,), (chaos,) = metrics(tmp_path, "calm"), metrics(tmp_path, "chaos")
    assert calm.pop("rollout/worker_restarts") == 0
    assert chaos.pop("rollout/worker_restarts") >= 1
    assert killed >= 1
    assert chaos == calm
    assert len(re.findall(r"env worker \d \(pid \d+, slots \[\d\]\) was killed by SIGKILL", said)) >= 1
