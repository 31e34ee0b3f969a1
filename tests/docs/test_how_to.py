"""The code of ``docs/how_to/``, run as it stands in the pages."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import warm

from embodied.client import Guard

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "how_to"
FILE = re.compile(r"^`(\S+)`:\n\n```(?:python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> list[str]:
    """The page's Python and YAML blocks as files of a project; the line before a block is the file's name."""
    found = FILE.findall((PAGES / page).read_text(encoding="utf-8"))
    for name, text in found:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return [name for name, _ in found]


def commands(page: str) -> list[str]:
    return [line for text in COMMANDS.findall((PAGES / page).read_text(encoding="utf-8")) for line in text.splitlines()]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def run(command: str, folder: Path) -> str:
    """What a command of a page prints, run in the project's folder."""
    program, *words = shlex.split(command)
    assert program == "python"
    done = warm.python(words, folder, timeout_s=3600.0)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(run_folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_an_env_of_the_user_s_is_checked_and_trained_in(tmp_path: Path) -> None:
    assert write_files("add_an_env.md", tmp_path) == ["my_envs.py", "my/env/reach.yaml", "my/model/small.yaml"]
    check, train = commands("add_an_env.md")
    assert "check_env(Reach())" in check
    run(check, tmp_path)
    assert "1 iteration done" in run(train, tmp_path)
    (row,) = rows(tmp_path / "runs" / "reach-small-grpo")
    assert row["rollout/episodes"] > 0
    assert row["rollout/return_mean"] > 0, "reward_mode=dense reads the env's own reward"


@pytest.mark.slow
def test_the_env_s_page_says_what_check_env_finds(tmp_path: Path) -> None:
    write_files("add_an_env.md", tmp_path)
    file = tmp_path / "my_envs.py"
    file.write_text(
        file.read_text(encoding="utf-8").replace("np.zeros(2), drawn", "np.random.uniform(size=2), drawn"),
        encoding="utf-8",
    )
    with pytest.raises(AssertionError, match="of an equal start"):
        run(commands("add_an_env.md")[0], tmp_path)


@pytest.mark.slow
def test_a_policy_behind_a_server_is_measured_in_libero(tmp_path: Path) -> None:
    from embodied.models.served.mapping import read

    assert write_files("measure_a_served_policy.md", tmp_path) == ["mapping.yaml"]
    mapping = read(str(tmp_path / "mapping.yaml"))
    assert mapping is not None
    assert mapping.take == 5
    (tmp_path / "models").symlink_to(ROOT / "models")
    serve, judge = commands("measure_a_served_policy.md")
    with serving(serve, tmp_path) as address:
        short = "env.eval.episodes_per_task=1 env.eval.max_episode_steps=16 runner.experiment_name=served"
        said = run(f"{judge.replace('ws://127.0.0.1:8000', address)} {short}", tmp_path)
    assert "fingerprint" in said
    assert "pick up the milk and place it in the basket" in said


ARM = [
    "my_arm.py", "my/env/arm.yaml", "my/model/arm.yaml", "my/experiment/arm.yaml", "guard.yaml", "robot.py",
]  # fmt: skip


@contextmanager
def serving(command: str, folder: Path) -> Iterator[str]:
    """A page's server in a process of its own, at any free port; yields its address."""
    words = [sys.executable, *shlex.split(command)[1:-1], "0"]
    with subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if line.startswith("ready: ")), "it has ended")
            yield ready.split()[1].rstrip(",")
        finally:
            process.terminate()
        process.stdout.read()


@pytest.mark.slow
def test_a_robot_task_of_the_user_s_is_cloned_reinforced_evaluated_exported_and_driven(tmp_path: Path) -> None:
    """The whole page to the letter; the guard alone is patient, since a busy machine may stand still for longer than a
    robot may."""
    assert write_files("add_a_robot_task.md", tmp_path) == ARM
    look, demonstrate, clone, train, judge, disturb, export, serve, drive = commands("add_a_robot_task.md")
    assert "state float32[2]" in run(look, tmp_path)
    assert "120 of 120 demonstrations" in run(demonstrate, tmp_path)
    for command in (clone, train):
        run(command, tmp_path)
    cloned, trained = (rows(tmp_path / "runs" / name)[-1]["eval/success_rate"] for name in ("cloned", "trained"))
    assert cloned <= 0.5
    assert trained >= 0.7
    assert "touch the red block" in run(judge, tmp_path)
    (grid,) = (tmp_path / "videos" / "judged" / "eval").rglob("grid.mp4")
    assert grid.stat().st_size > 1000
    assert "latency" in run(disturb, tmp_path)
    run(export, tmp_path)
    file = tmp_path / "guard.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("max_age_s: 0.5", "max_age_s: 60"), encoding="utf-8")
    with serving(serve, tmp_path) as url:
        out = run(drive.replace("ws://127.0.0.1:8000", url), tmp_path)
    touched = re.search(r"(\d) of 5 blocks touched", out)
    assert touched is not None
    assert int(touched[1]) >= 2
    assert (tmp_path / "guard.jsonl").is_file()


def test_the_commands_of_the_robot_task_s_page_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, with a few episodes and optimizer steps."""
    write_files("add_a_robot_task.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _, demonstrate, clone, train, _, disturb, _, _, _ = commands("add_a_robot_task.md")
    few, bare = "env.eval.episodes_per_task=2", "env.eval.video_cfg.save_video=false runner.logger.report=false"
    shorter = (
        demonstrate.replace("episodes=120", "episodes=4"),
        re.sub(r"(max_epochs|interval)=\d+", r"\1=1", clone).replace("env.eval.episodes_per_task=100", few)
        + f" sft.steps_per_iteration=1 sft.val_samples=8 {bare}",
        f"{train} runner.max_epochs=1 algorithm.rollout_epoch=1 env.train.total_num_envs=8 {few} {bare}",
        disturb.replace("env.eval.episodes_per_task=50", few) + f" env.eval.perturb.kinds=[latency] {bare}",
    )
    for command in shorter:
        module, *words = shlex.split(command)[2:]
        assert importlib.import_module(module).main(words) == 0, command
    assert "touch the red block" in capsys.readouterr().out
    assert rows(tmp_path / "runs" / "trained")[0]["rollout/return_mean"] > 0, "reward_mode=dense pays for the way"
    assert len(json.loads((tmp_path / "runs/disturbed/eval/robustness.json").read_text(encoding="utf-8"))) > 1
    assert Guard.from_yaml(tmp_path / "guard.yaml").interventions == 0


@pytest.mark.slow
def test_the_robot_task_s_page_says_what_a_wrong_mapping_gets(tmp_path: Path) -> None:
    write_files("add_a_robot_task.md", tmp_path)
    look = commands("add_a_robot_task.md")[0]
    with pytest.raises(AssertionError, match=r"(?s)obs.hnad, which the env does not have.*'obs.hand'"):
        run(look + " env.train.state=[obs.hnad]", tmp_path)


def test_a_tracker_of_the_user_s_gets_the_metrics_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    write_files("add_a_tracker.md", tmp_path)
    for command in commands("add_a_tracker.md"):
        run(command, tmp_path)
    folder = tmp_path / "runs" / "fake-small-grpo"
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    logged = rows(folder)
    assert [int(row["step"]) for row in written] == [row["step"] for row in logged] == [1, 2]
    for name in ("rollout/episodes", "rollout/success_rate", "train/loss"):
        assert [float(row[name]) for row in written] == [row[name] for row in logged]


LEARNT = ("train/loss", "train/grad_norm", "train/ratio_max", "rollout/return_mean")


def test_a_loss_of_the_user_s_trains_with_its_option(tmp_path: Path) -> None:
    assert write_files("add_a_loss.md", tmp_path) == [
        "my_losses.py", "my/algorithm/spo.yaml", "my/env/fake.yaml", "my/model/small.yaml", "my_terms.py",
    ]  # fmt: skip
    by_file, by_key, with_term = commands("add_a_loss.md")
    other = by_key.replace("strength=2", "strength=0.01") + " runner.experiment_name=weak"
    for command in (by_file, by_key, other):
        assert "1 iteration done" in run(command, tmp_path)
    (one,), (two,), (weak,) = (rows(tmp_path / "runs" / name) for name in ("fake-small-spo", "fake-small-grpo", "weak"))
    assert one["train/grad_norm"] > 0
    assert [one[name] for name in LEARNT] == [two[name] for name in LEARNT]
    assert one["train/loss"] != weak["train/loss"], "the option reaches the loss"
    assert "1 iteration done" in run(with_term, tmp_path)
    (near,) = rows(tmp_path / "runs" / "near")
    assert near["train/squared_change"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "message"),
    [("strenght=2", "Did you mean 'strength'"), ("strength=-1", "strength is -1, expected a number above 0")],
)
def test_a_wrong_option_of_a_loss_is_refused_before_anything_starts(tmp_path: Path, option: str, message: str) -> None:
    write_files("add_a_loss.md", tmp_path)
    with pytest.raises(AssertionError, match=message):
        run(commands("add_a_loss.md")[1].replace("strength=2", option), tmp_path)
    assert not list(tmp_path.glob("runs/*/logs/*"))


def test_a_policy_of_the_user_s_is_checked_and_trained(tmp_path: Path) -> None:
    assert write_files("add_a_policy.md", tmp_path) == [
        "my_policies.py", "my/model/gaussian.yaml", "my/env/fake.yaml",
    ]  # fmt: skip
    check, train = commands("add_a_policy.md")
    assert "check_policy(GaussianPolicy()" in check
    run(check, tmp_path)
    assert "1 iteration done" in run(train, tmp_path)
    (row,) = rows(tmp_path / "runs" / "fake-gaussian-grpo")
    assert row["train/grad_norm"] > 0
    assert row["train/logprob_gap"] < 1e-4


@pytest.mark.slow
def test_the_policy_s_page_says_what_check_policy_finds(tmp_path: Path) -> None:
    write_files("add_a_policy.md", tmp_path)
    file = tmp_path / "my_policies.py"
    file.write_text(
        file.read_text(encoding="utf-8").replace('_log_prob(records["drawn"]', '_log_prob(records["actions"]'),
        encoding="utf-8",
    )
    with pytest.raises(AssertionError, match="log-probs of evaluate and act"):
        run(commands("add_a_policy.md")[0], tmp_path)


def test_every_page_is_run() -> None:
    pages = {"add_a_loss.md", "add_a_policy.md", "add_a_robot_task.md", "add_a_tracker.md", "add_an_env.md"}
    pages |= {"measure_a_served_policy.md"}
    pages |= {"improve_a_served_policy.md"}  # test_improve_a_served_policy.py
    pages |= {"your_problems.md"}  # test_your_problems.py
    pages |= {"run_on_a_cluster.md"}  # tests/cluster/test_ray_nodes.py
    assert {page.name for page in PAGES.glob("*.md")} == pages
