"""The packages of the four services as they are, offline: real runs, and what each package reads of them afterwards.

They are installed into an environment of their own, which sees the packages of this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from environments import python_with
from logged import VARYING

from embodied.observe.trackers.services import SERVICES

ROOT = Path(__file__).parents[2]
CONFIG = ("--config-dir", str(ROOT / "tests" / "config"))
TRACKED = (
    f"runner.logger.logger_backends=[jsonl,{','.join(SERVICES)}]", "runner.logger.group_name=g",
    "runner.experiment_name=run", "runner.device=cpu", "runner.logger.report=false", "env.num_workers=1", *CONFIG,
)  # fmt: skip
RUN = (
    "env=fake", "model=fake", "runner.save_interval=1", "runner.val_check_interval=1", "algorithm.rollout_epoch=4",
    "env.train.max_episode_steps=10", "env.eval.max_episode_steps=6", "env.eval.episodes_per_task=2", *TRACKED,
)  # fmt: skip
TEXT = (
    "env=fake_text", "model=fake_text", "runner.task_type=math", "env.eval.episodes_per_task=4",
    "env.eval.video_cfg.save_video=false", "runner.logger.log_val_generations=3", *TRACKED,
)  # fmt: skip
SOON_S = 45.0  # of which the tracker may have 20; the machine may be busy
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("service", SERVICES)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the four packages."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = [one for name in SERVICES for one in extras[name]]
    return python_with(wanted, tmp_path_factory.mktemp("environment"), shares=True)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "SWANLAB", "MLFLOW"))}
    offline = {"WANDB_MODE": "offline", "SWANLAB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio")}
    return kept | offline | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}


def start(python: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment(folder),
        text=True,
        capture_output=True,
        timeout=300,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def logged(folder: Path) -> dict[str, list[list[float]]]:
    """Metrics of the run as metrics.jsonl has them: ``{name: [[step, value], …]}``."""
    found: dict[str, list[list[float]]] = {}
    for line in (folder / "runs" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name != "step" and value is not None:
                found.setdefault(name, []).append([row["step"], value])
    return found


def read(python: str, folder: Path, service: str, run: str = "run") -> dict[str, Any]:
    said = start(python, folder, str(ROOT / "tests" / "helpers" / "tracker_readers.py"), service, f"runs/{run}")
    return json.loads(said.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations that went on to a third; one more checkpoint was lost in between."""
    folder = tmp_path_factory.mktemp("trained")
    secret = "protocol.source=https://me:sk-very-secret@host/page"
    for last in (2, 3):
        said = start(python, folder, "-m", "embodied.train", *RUN, f"runner.max_epochs={last}", secret)
        assert "failed and is off" not in said
        if last == 2:
            (newest,) = folder.glob("runs/run/checkpoints/000002")
            newest.rename(folder / "lost")  # so that step 2 is made, and would be logged, twice
    return folder


def test_what_a_run_logs_is_what_the_package_reads(service, python, trained):
    found = read(python, trained, service)
    expected = logged(trained)
    assert len(set(found["runs"])) == 1, "a resumed run goes on in the same one"
    lasting = [name for name in expected if not VARYING.match(name)]
    assert len(lasting) > 20
    same = {name.replace("@", "_at_") if service == "mlflow" else name: name for name in lasting}
    for theirs, ours in same.items():
        assert [[step, pytest.approx(value)] for step, value in expected[ours]] == found["metrics"][theirs], ours
    for name in set(expected) - set(lasting):
        steps = [step for step, _ in found["metrics"][name]]
        assert len(steps) == len(set(steps)), f"{name} has a step twice"
    assert found["group"] == "g"
    assert "fake-policy" in found["config"] or "FakePolicy" in found["config"]
    assert "(hidden)" in found["config"]


def test_tables_and_videos_of_evaluations_are_there(service, python, trained):
    found = read(python, trained, service)
    assert sorted(found["tables"]) == ["eval/success"]
    for step in (1, 2, 3):
        rows = found["tables"]["eval/success"][str(step)]
        evaluation = json.loads((trained / "runs" / "run" / "eval" / f"{step:06d}.json").read_text(encoding="utf-8"))
        columns = ("instruction", "successes", "episodes", "success_rate", "low", "high", "not_run")
        of_task = [[row[name] for name in columns] for row in evaluation["tasks"]]
        assert [row[1:-2] for row in rows] == of_task
        assert {row[-1] for row in rows} == {evaluation["protocol"]["hash"]}
    made = sorted(file.stat().st_size for file in (trained / "videos" / "run" / "eval").rglob("*.mp4"))
    assert len(made) == len(found["videos"]) == 15  # of three evaluations: four episodes and their grid
    assert service == "swanlab" or sorted(found["videos"]) == made  # SwanLab gets them as GIFs


def test_no_secret_reaches_any_of_its_files(service, python, trained):
    places = {"wandb": "runs/run/wandb", "swanlab": "runs/run/swanlab", "trackio": "trackio", "mlflow": "runs/run"}
    files = [file for file in (trained / places[service]).rglob("*") if file.is_file()]
    holding = [file for file in files if b"sk-very-secret" in file.read_bytes()]
    own = {"config.yaml", "starts.jsonl"}
    assert len(files) > 2
    assert [file for file in holding if file.parent != trained / "runs" / "run" or file.name not in own] == []


def test_generations_go_to_a_table(service, python, tmp_path):
    only = f"runner.logger.logger_backends=[{service}]"
    start(python, tmp_path, "-m", "embodied.eval", *TEXT, only)
    (file,) = tmp_path.glob("runs/run/generations/*.jsonl")
    kept = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    found = read(python, tmp_path, service)
    rows = found["tables"]["eval/generations"]["0"]
    assert [row[:4] for row in rows] == [
        [one["episode"], one["prompt"], one["response"], pytest.approx(one["reward"])] for one in kept
    ]
    assert len(rows) == 3
    assert [step for step, _ in found["metrics"]["eval/success_rate"]] == [0]


def test_ctrl_c_ends_a_run_with_its_tracker(service, python, tmp_path):
    only = f"runner.logger.logger_backends=[jsonl,{service}]"
    run = subprocess.Popen(
        [python, "-m", "embodied.train", *RUN, only, "runner.max_epochs=100000", "runner.val_check_interval=-1"],
        cwd=tmp_path, env=environment(tmp_path), start_new_session=True, stdout=subprocess.PIPE, text=True,
    encoding="utf-8")  # fmt: skip
    state = tmp_path / "runs" / "run" / "trackers" / f"{service}.json"
    until = time.monotonic() + 60.0
    while not (state.exists() and json.loads(state.read_text(encoding="utf-8"))["done"].get("log", 0) > 2):
        assert time.monotonic() < until
        assert run.poll() is None
        time.sleep(0.05)
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    said, _ = run.communicate(timeout=SOON_S)
    assert run.returncode == 130
    print(f"{service}: ended after {time.monotonic() - began:.1f} s")
    assert "failed and is off" not in said
    found = read(python, tmp_path, service)
    assert len(found["metrics"]["train/loss"]) == len(logged(tmp_path)["train/loss"])
    left = [command for command in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _content(command)]
    assert left == []


def _content(file: Path) -> bytes:
    try:
        environ = file.with_name("environ").read_bytes()
        return file.read_bytes() + environ
    except OSError:
        return b""
