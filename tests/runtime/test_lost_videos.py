"""A video that cannot be written is said once; the episodes go on and stay the same."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from embodied.lib import child
from embodied.runtime.engine import process
from embodied.runtime.engine.process import EngineProcess
from embodied.runtime.plan import train_plan, with_videos


def outcome(results):
    return [(one.episode.start, one.episode_return, one.success, one.num_steps) for one in results]


@pytest.mark.parametrize(("fault", "kind"), [("no folder", "singles"), ("removed", "batch")])
def test_a_video_that_cannot_be_written_is_said_once_and_the_run_goes_on(make_rig, tmp_path, fault, kind):
    said, folder = [], tmp_path / "videos"
    more = {"target": "embodied.testing.FakeBatchEnv", "pool": {"batch": True}} if kind == "batch" else {}
    rig = make_rig(slots=2, workers=2, size=32, step_s=0.005, success_distance=0.0, say=said.append, **more)
    plan = train_plan(rig.env.spec, seed=3, iteration=0, episodes=8, group_size=2)
    expected, _ = rig.rollout().collect(plan, rig.job(keep_records=False))
    if fault == "no folder":
        folder.write_text("a file", encoding="utf-8")
    recorded = with_videos(plan, folder, 8)
    ended = threading.Event()

    def remove():
        while not ended.wait(0.001):
            shutil.rmtree(folder, ignore_errors=True)

    thief = threading.Thread(target=remove)
    if fault == "removed":
        thief.start()
    try:
        results, stats = rig.rollout().collect(recorded, rig.job(keep_records=False))
    finally:
        ended.set()
    assert outcome(results) == outcome(expected)
    assert not stats.worker_restarts
    assert [line.split(":")[0] for line in said] == ["an episode goes on without its video"]
    assert str(folder) in said[0]
    assert "fix: free space on that disk" in said[0]
    assert not any(Path(one.episode.video).exists() for one in results) or fault == "removed"


def test_an_engine_that_outlives_its_kill_is_left(tmp_path, monkeypatch):
    """As one that a disk which does not answer holds in the kernel."""
    engine = EngineProcess(["sleep"], {"PATH": "/usr/bin:/bin"}, tmp_path / "log", "fix it")
    waited = []

    def wait(timeout=None):
        waited.append(timeout)
        raise subprocess.TimeoutExpired("engine", timeout)

    monkeypatch.setattr(engine._process, "wait", wait)
    engine.close()
    assert waited == [process.STACK_S, pytest.approx(child.REAP_S, abs=1.0)], "never without a limit"
    assert "SIGKILL does not end it" in engine._died().message
    monkeypatch.undo()
    engine._process.wait(10)
