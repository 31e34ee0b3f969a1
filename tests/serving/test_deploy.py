"""The code of ``docs/deploy.md``, run as it stands in the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from test_over_the_wire import RUN, TRAIN, served, serving

from embodied import train
from embodied.testing import FakeEnv, FakePolicy

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
FILE = re.compile(r"^`(\S+)`:\n\n```(?:python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPORT, SERVE, ROBOT, SIMULATED, CHECK, LEARN = (line for text in COMMANDS.findall(PAGE) for line in text.splitlines())


def run(command: str, folder: Path, changes: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a command of the page with this interpreter in the project's folder.

    Args:
        changes: what is another here: the run that the checkpoint comes from, the port, the simulator.
    """
    for theirs, ours in changes.items():
        assert theirs in command
        command = command.replace(theirs, ours)
    assert command.startswith("python ")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        ["bash", "-c", f'"$0"{command.removeprefix("python")}', sys.executable],
        cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300,
    encoding="utf-8")  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the page's files."""
    found = FILE.findall(PAGE)
    for name, text in found:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    names = ["guard.yaml", "robot.py", "my_robot.py", "helped_robot.py", "learn/env/robot.yaml"]
    assert [name for name, _ in found] == names
    bear(tmp_path / "guard.yaml", "max_age_s: 0.5", "max_age_s: 30")
    bear(tmp_path / "robot.py", "guard=guard)", "guard=guard, late_limit=99)")
    return tmp_path


def bear(file: Path, theirs: str, ours: str) -> None:
    """Changes a number of the page: a busy machine may stand still for longer than a robot may."""
    assert theirs in file.read_text(encoding="utf-8")
    file.write_text(file.read_text(encoding="utf-8").replace(theirs, ours), encoding="utf-8")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with the fake policy in the place of the page's; the slow test starts the page's own."""
    policy = FakePolicy(num_action_chunks=12)
    policy.bind(FakeEnv().spec)
    with serving(policy) as server:
        yield f"ws://{server.address}"


def test_the_robot_s_loop_runs_under_the_guard(project, address):
    done = run(ROBOT, project, {"ws://127.0.0.1:8000": address})
    assert done.returncode == 0, done.stderr
    assert "the robot stands\n40 control steps" in done.stdout
    lines = [json.loads(line) for line in (project / "guard.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0]["what"] == ["on"]
    assert f" {len(lines) - 1} interventions" in done.stdout


def test_a_guard_that_stops_ends_the_loop_with_the_robot_at_a_stand(project, address):
    file = project / "guard.yaml"
    file.write_text(
        file.read_text(encoding="utf-8")
        .replace("mode: clip", "mode: stop")
        .replace("velocity: [1,", "velocity: [0.01,"),
        encoding="utf-8",
    )
    done = run(ROBOT, project, {"ws://127.0.0.1:8000": address})
    assert done.returncode == 1
    assert "the robot stands" in done.stdout
    assert "GuardStopError: the guard has stopped the robot at control step 0: the action breaks" in done.stderr


def test_the_simulated_robot_of_the_page_runs_with_another_simulator(project, address):
    changes = {
        "ws://127.0.0.1:8000": address, "examples/": f"{ROOT}/examples/",
        "--execute 4": "--execute 6 --max-steps 20 --clock steps",
        "embodied.envs.libero.LiberoEnv": "embodied.testing.FakeEnv",
        '{"task_suite_name": "libero_spatial", "task_ids": [0]}': '{"num_tasks": 1}',
    }  # fmt: skip
    done = run(SIMULATED, project, changes)
    assert done.returncode == 0, done.stderr
    assert "succeed, 20.0 control steps an episode" in done.stdout


def test_the_robot_of_the_page_is_an_env_that_can_be_stopped(project):
    done = run(CHECK, project, {})
    assert done.returncode == 0, done.stderr
    assert "told to stop" in done.stdout


@pytest.mark.slow
def test_the_robot_of_the_page_learns_beside_a_person(project):
    small = (
        "runner.experiment_name=robot runner.max_epochs=3 env.train.max_episode_steps=8 env.eval.max_episode_steps=8 "
        "env.eval.episodes_per_task=1 algorithm.rollout_epoch=2 algorithm.sac.learning_starts=16 "
        "actor.global_batch_size=8 actor.micro_batch_size=8 actor.model.hidden=16 runner.val_check_interval=-1 "
        "env.eval.video_cfg.save_video=false tracker=jsonl"
    )
    done = run(LEARN, project, {"runner.experiment_name=robot": small})
    assert done.returncode == 0, done.stderr
    lines = (project / "runs" / "robot" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["rollout/intervention_share"] for line in found] == [5 / 8, 0, 0]
    assert found[-1]["train/optimizer_steps"] > 0


@pytest.mark.slow
def test_the_export_of_the_page_is_served(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main([*RUN[:-3], *TRAIN, "model=openvla_oft_tiny", *RUN[-2:]]) == 0
    (checkpoint,) = (tmp_path / "runs" / "run" / "checkpoints").iterdir()
    done = run(EXPORT, project, {"runs/NAME/checkpoints/000100": str(checkpoint)})
    assert done.returncode == 0, done.stderr
    assert SERVE == "python -m embodied.tools.serve policy --port 8000"
    with served(project / "policy") as url:
        done = run(ROBOT, project, {"ws://127.0.0.1:8000": url})
    assert "40 control steps" in done.stdout, done.stderr
