"""The selftest of evaluations: what must not change their numbers, and what it says where something does."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from embodied import train
from embodied.errors import ConfigError
from embodied.eval import main as evaluation
from embodied.observe.terminal.console import make_console
from embodied.parallel.group import Group
from embodied.run import selftest
from embodied.run.build.preflight import check
from embodied.run.build.simulators import rows_of_call
from embodied.runtime.plan import eval_plan
from embodied.schema.compose.compose import compose
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import EpisodeResult

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false",
    "env.eval.max_episode_steps=8", "env.eval.success_distance=0.6", "env.train.success_distance=0.6",
)  # fmt: skip
LIBERO = (
    "env=quickstart_libero", "model=openvla_oft_quickstart_libero", "tracker=jsonl", "runner.device=cpu",
    "actor.model.model_path=package:embodied.models.openvla_oft/policies/libero_object", "env.train.task_ids=[0]",
    "env.eval.task_ids=[0]", "env.eval.total_num_envs=2", "env.num_workers=1", "env.eval.renderer=egl",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluate(name: str, *overrides: str) -> int:
    return evaluation([*FAKE, *overrides, f"runner.experiment_name={name}", "--config-dir", CONFIG])


def test_the_selftest_finds_no_difference_on_a_cpu(capsys):
    asked = ("env.eval.episodes_per_task=2", "env.eval.ignore_terminations=true")
    assert evaluate("run", "selftest=true", *asked) == evaluate("plain", *asked) == 0
    found = json.loads(Path("runs/run/selftest.json").read_text(encoding="utf-8"))
    plain = json.loads(Path("runs/plain/eval/000000.json").read_text(encoding="utf-8"))
    assert found["protocol"] == {"name": None, "hash": plain["protocol"]["hash"]}
    assert [row["name"] for row in found["runs"]] == [
        "env.eval.total_num_envs=1 in place of 2",
        "env.eval.total_num_envs=1 in place of 2, with its own rows of a policy call (1)",
        "rollout.schedule=lockstep in place of ready",
    ]  # fmt: skip
    assert all(row["zero"] and row["episodes"] == 4 for row in found["runs"])
    assert "no difference: each of 4 episodes gave the same numbers in 4 runs" in capsys.readouterr().out
    assert train.main([*FAKE, "selftest=true", "--config-dir", CONFIG], "train") == 2


@pytest.mark.parametrize(
    ("options", "envs", "rows"),
    [
        (["env.eval.total_num_envs=16"], [8, 4], 4),
        (["env.eval.total_num_envs=6"], [3, 3], 3),
        (["env.eval.total_num_envs=1"], [2, 2], 2),
        (["env.eval.total_num_envs=6", "rollout.policy_batch=5"], [3], None),
        (["env.eval.total_num_envs=6", "algorithm.val_rollout_batch_size_per_gpu=5"], [3], None),
    ],
)
def test_another_number_of_envs_is_run_with_the_rows_that_it_would_have(options, envs, rows):
    asked = check(compose([*FAKE, *options], "eval", [CONFIG]), Group())
    policy, console = FakePolicy(), make_console(io.StringIO())
    first = selftest.prepared(selftest.Variation(asked.composed, asked.sides), Group(), policy)
    others = selftest.variations(first, asked.config.rollout.policy_batch, Group(), policy, "", console)
    found = [one.composed.config for name, one in others if "total_num_envs" in name]
    assert [config.env.eval.total_num_envs for config in found] == envs
    pinned = first.composed.config.rollout.policy_batch
    assert found[0].rollout.policy_batch == pinned
    for config in found[1:]:
        assert rows_of_call(policy, config.rollout, config.env.eval.total_num_envs) == rows != pinned


def test_the_selftest_says_how_large_a_difference_is():
    plan = eval_plan(FakeEnv().spec, episodes_per_task=2)
    first = [EpisodeResult(episode, (), 1.0, True, 5, True, False) for episode in plan]
    second = [*first[:3], EpisodeResult(plan[3], (), 0.25, False, 8, False, True)]
    moved = [*first[:3], EpisodeResult(plan[3], (), 1.0, True, 5, True, False, progress=1e-9)]
    row = selftest.difference("moved", first, moved)
    assert (row.other_success, row.other_progress, row.largest_progress, row.zero) == (0, 1, 1e-9, False)
    row = selftest.difference("other", first, second)
    assert (row.successes, row.episodes, row.other_success, row.other_steps, row.other_return) == (3, 4, 1, 1, 1)
    assert (row.largest_return, row.difference, row.zero) == (0.75, -0.25, False)
    assert "1 of 4 episodes with another success (other)" in selftest.verdict([row])
    lost = [EpisodeResult(episode, (), 0.0, False, 0, False, False, not_run="gone") for episode in plan]
    with pytest.raises(ConfigError, match="no episode could be run both ways"):
        selftest.difference("other", first, lost)


@pytest.mark.sim
@pytest.mark.slow
def test_two_renderers_of_libero(capsys):
    """Where the machine has two. Number of envs and schedule change nothing; how large a difference of the renderer is,
    is said."""
    short = ("env.eval.episodes_per_task=1", "env.eval.max_episode_steps=40", "env.init_timeout_s=600")
    assert evaluation([*LIBERO, *short, "selftest=true", "runner.logger.log_path=run"]) == 0
    said = capsys.readouterr().out
    if "no run with renderer osmesa" in said:
        pytest.skip("this machine has one renderer")
    assert "renderer: osmesa" in said, "as the workers found it"
    found = json.loads(Path("run/selftest.json").read_text(encoding="utf-8"))
    assert found["simulator"]["renderer"] == "egl"
    runs = {row["name"].partition(" ")[0]: row for row in found["runs"] if "its own rows" not in row["name"]}
    assert [*runs] == ["env.eval.total_num_envs=1", "rollout.schedule=lockstep", "env.eval.renderer=osmesa"]
    drawn = runs.pop("env.eval.renderer=osmesa")
    assert all(row["zero"] for row in runs.values())
    assert drawn["episodes"] == 1
    assert ("no difference" in said.strip().splitlines()[-1]) == all(row["zero"] for row in found["runs"])
