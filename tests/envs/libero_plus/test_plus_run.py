"""Evaluations on LIBERO-Plus as a user runs them: one that is stopped goes on, and a scene that cannot be built ends
nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from plus_package import TASK, write_package

pytestmark = [pytest.mark.sim, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
BROKEN = f"{TASK}_level2_sample1"
BOTH = [f"env.{side}.init_params.{key}" for side in ("train", "eval") for key in (
    "camera_names=[agentview,robot0_eye_in_hand]", "camera_heights=64", "camera_widths=64")]  # fmt: skip
ASKED = (
    "env=libero_plus_spatial", "protocol=libero_plus", "env.eval.skip_missing=true",
    "model=openvla_oft_quickstart_libero", "actor.model.max_prompt_length=200", *BOTH,
    "actor.model.model_path=package:embodied.models.openvla_oft/policies/libero_object", "runner.device=cpu",
    "env.eval.max_episode_steps=8", "env.eval.total_num_envs=2", "env.num_workers=1", "tracker=jsonl",
    "env.eval.video_cfg.save_video=false", "env.max_worker_restarts=1",
)  # fmt: skip


def begin(site: Path, run: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    command = [sys.executable, "-m", "embodied.eval", *ASKED, f"runner.logger.log_path={run}"]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=site,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval" / "000000.json").read_text(encoding="utf-8"))
    return found


def without_pid(episode: dict[str, Any]) -> dict[str, Any]:
    """Keeps whether an episode was run; its error names a process."""
    return {**episode, "not_run": bool(episode.get("not_run"))}


def test_a_stopped_evaluation_goes_on_and_a_broken_scene_is_named(tmp_path: Path) -> None:
    site = tmp_path / "site"
    package = write_package(site)
    bddl = package / "bddl_files" / "libero_spatial" / f"{BROKEN}.bddl"
    text = bddl.read_text(encoding="utf-8")
    bddl.write_text(text[: len(text) // 2], encoding="utf-8")  # a file that was copied in part

    process = begin(site, tmp_path / "stopped")
    kept = tmp_path / "stopped" / ".unfinished" / "000000.jsonl"
    while process.poll() is None and not (kept.is_file() and kept.read_text(encoding="utf-8").count("\n") >= 4):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert "goes on from the episodes that were run" in said, said

    again, _ = begin(site, tmp_path / "stopped").communicate(timeout=500)
    whole, _ = begin(site, tmp_path / "whole").communicate(timeout=500)
    assert "episodes were run before; the others follow" in again, again
    found, other = result(tmp_path / "stopped"), result(tmp_path / "whole")
    assert [without_pid(episode) for episode in found["episodes"]] == [without_pid(one) for one in other["episodes"]]
    assert found["kinds"] == other["kinds"]
    assert [*found["tasks_not_run"]] == [BROKEN]
    assert f"tasks that could not be run: {BROKEN}" in whole
    assert "kinds done" in whole
    assert not kept.exists()
    rows = {row["kind"]: row for row in found["kinds"] if row["strength"] == "all"}
    assert (rows["layout"]["not_run"], rows["all"]["not_run"]) == (1, 1)
    own = {"actor.model.image_preset": "rlinf", "actor.model.center_crop": False}
    assert own.items() <= found["protocol"]["changed"].items(), "pictures are the policy's own, and the file says so"
