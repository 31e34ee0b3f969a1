"""The code of ``docs/how_to/``, run as it stands in the pages."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
import warm

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


def run(command: str, folder: Path) -> str:
    """What a command of a page prints, run in the project's folder."""
    program, *words = shlex.split(command)
    assert program == "python"
    done = warm.python(words, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(run_folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_an_env_of_the_user_s_is_checked_and_trained_in(tmp_path: Path) -> None:
    assert write_files("add_an_env.md", tmp_path) == ["my_envs.py", "my/env/reach.yaml", "my/model/small.yaml"]
    check, train = commands("add_an_env.md")
    assert "check_env(Reach())" in check
    run(check, tmp_path)
    assert "1 iterations done" in run(train, tmp_path)
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
def test_a_robot_task_of_the_user_s_is_demonstrated_learnt_evaluated_and_filmed(tmp_path: Path) -> None:
    assert write_files("add_a_robot_task.md", tmp_path) == ["my_tasks.py", "my/env/marks.yaml"]
    look, demonstrate, clone, train, evaluate = commands("add_a_robot_task.md")
    assert "state float32[6]" in run(look, tmp_path)
    assert "60 of 60 demonstrations" in run(demonstrate, tmp_path)
    run(clone, tmp_path)
    (cloned,) = rows(tmp_path / "runs" / "cloned")
    assert cloned["eval/success_rate"] >= 0.5
    assert "2 iterations done" in run(train, tmp_path)
    assert rows(tmp_path / "runs" / "trained")[0]["rollout/success_rate"] > 0.3
    said = run(evaluate, tmp_path)
    assert "go to the blue mark" in said
    (grid,) = (tmp_path / "videos" / "judged" / "eval").rglob("grid.mp4")
    assert grid.stat().st_size > 1000


@pytest.mark.slow
def test_the_robot_task_s_page_says_what_a_wrong_mapping_gets(tmp_path: Path) -> None:
    write_files("add_a_robot_task.md", tmp_path)
    look = commands("add_a_robot_task.md")[0]
    with pytest.raises(
        AssertionError, match=r"(?s)obs.gren, which the env does not have.*'obs.green'.*obs.hand float32"
    ):
        run(look + " env.train.state=[obs.gren]", tmp_path)


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
        assert "1 iterations done" in run(command, tmp_path)
    (one,), (two,), (weak,) = (rows(tmp_path / "runs" / name) for name in ("fake-small-spo", "fake-small-grpo", "weak"))
    assert one["train/grad_norm"] > 0
    assert [one[name] for name in LEARNT] == [two[name] for name in LEARNT]
    assert one["train/loss"] != weak["train/loss"], "the option reaches the loss"
    assert "1 iterations done" in run(with_term, tmp_path)
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
    assert "1 iterations done" in run(train, tmp_path)
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
    assert {page.name for page in PAGES.glob("*.md")} == pages
