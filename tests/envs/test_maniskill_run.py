"""Training on real ManiSkill with pixels and the small policy, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import imageio.v3 as iio
import pytest
from embodied.envs.maniskill.rendering import check_vulkan

from embodied.errors import RendererUnavailableError
from embodied.runtime.plan import EVAL_SEEDS

SMALL = (
    "tracker=jsonl", "runner.max_epochs=1", "runner.val_check_interval=1", "algorithm.group_size=2",
    "algorithm.rollout_epoch=2", "env.train.max_episode_steps=12", "env.eval.max_episode_steps=10",
)  # fmt: skip

pytestmark = [pytest.mark.sim, pytest.mark.slow]


def start(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "embodied.train", "runner.experiment_name=small", *SMALL, *overrides]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=560, encoding="utf-8")


@pytest.mark.parametrize("task", ["env=maniskill_pickcube", "env=maniskill_pushcube", "env=maniskill_peginsertionside"])
def test_trains_and_evaluates(tmp_path: Path, task: str) -> None:
    try:
        check_vulkan()
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    done = start(tmp_path, task)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Vulkan on" in done.stdout
    (row,) = [
        json.loads(line)
        for line in (tmp_path / "runs" / "small" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert (row["rollout/episodes"], row["rollout/env_steps"], row["rollout/records"]) == (4, 48, 8)
    assert row["train/grad_norm"] > 0
    (report,) = (tmp_path / "runs" / "small" / "eval").iterdir()
    episodes = json.loads(report.read_text(encoding="utf-8"))["episodes"]
    assert [episode["start"]["seed"] for episode in episodes] == [EVAL_SEEDS]
    video = iio.imread(tmp_path / episodes[0]["video"])
    assert video.shape[0] == 11  # the start and ten control steps
    assert video.std() > 10


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env.train.init_params.control_mode=pd_ee_delta_poes", "Did you mean 'pd_ee_delta_pos'?"),
        ("env.train.init_params.id=PickCub-v1", "Did you mean 'PickCube-v1'?"),
        ("env.train.init_params.camera_names=[hand_camera]", "unknown camera of PickCube-v1 'hand_camera'"),
    ],
)
def test_mistakes_are_refused_before_any_worker(tmp_path: Path, override: str, says: str) -> None:
    done = start(tmp_path, "env=maniskill_pickcube", override)
    assert done.returncode == 2
    assert says in done.stdout + done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_action_dimension_must_be_the_policys(tmp_path: Path) -> None:
    mode = "init_params.control_mode=pd_ee_delta_pos"
    given = "actor.model.action_dim=7"
    done = start(tmp_path, "env=maniskill_pickcube", f"env.train.{mode}", f"env.eval.{mode}", given)
    assert done.returncode == 2
    assert "actor.model.action_dim=4" in done.stdout + done.stderr


def test_the_benchmark_of_25_objects_says_what_to_download(tmp_path: Path) -> None:
    done = start(tmp_path, "env=maniskill_putonplate25")
    assert done.returncode == 2
    assert "hf download --repo-type dataset RLinf/maniskill_assets" in done.stdout + done.stderr
