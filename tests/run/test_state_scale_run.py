"""Whole runs whose policy scales the state by what a training sees first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logged import rows_of
from seeded_runs import tensors
from test_run import run
from test_run_ranks import finished, started

from embodied import sft
from embodied.learn.trainer import Trainer
from embodied.run.training.collector import Collector
from embodied.run.training.state_scale import SMALLEST, deviations
from embodied.tools import demos

NUMBERS = (
    "model=mlp", "algorithm=ppo", "env.train.pictures=false", "algorithm.group_size=1", "actor.model.hidden=16",
    "env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.rollout_epoch=4",
    "env.train.reward_mode=dense", "env.start_method=forkserver", "actor.model.bins=9",
)  # fmt: skip
RAW = "actor.model.normalize_state=false"
SAID = "The state is scaled by"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def scale_of(name: str, iteration: int = 2) -> dict[str, Any] | None:
    """Returns the statistics that a checkpoint has."""
    meta = Path("runs", name, "checkpoints", f"{iteration:06d}", "meta.json").read_text(encoding="utf-8")
    settled = json.loads(meta)["settled"]
    return json.loads(settled["statistics"]) if settled else None


def same(one: str, other: str) -> None:
    assert rows_of(Path("runs", one)) == rows_of(Path("runs", other))
    got, wanted = tensors(Path("runs", one)), tensors(Path("runs", other))
    assert got.keys() == wanted.keys()
    assert all(bool((got[name] == wanted[name]).all()) for name in wanted)


def test_the_scale_is_that_of_the_episodes_that_nothing_is_learnt_from(monkeypatch, capsys):
    """A policy that reads the state as it is begins with the same weights, starts and noise."""
    seen: list[np.ndarray] = []
    update = Trainer.update

    def watched(trainer, arrays, results, *more):
        if not seen:
            seen.append(np.concatenate([arrays["state"][[*result.rows]] for result in results]))
        return update(trainer, arrays, results, *more)

    monkeypatch.setattr(Trainer, "update", watched)
    assert run(*NUMBERS, RAW, name="raw") == 0
    assert SAID not in capsys.readouterr().out
    assert scale_of("raw") is None
    assert run(*NUMBERS, name="scaled") == 0
    assert SAID in " ".join(capsys.readouterr().out.split())
    assert scale_of("scaled") == {"name": "first episodes", "proprio": deviations(seen[0])}
    raw, scaled = rows_of(Path("runs/raw")), rows_of(Path("runs/scaled"))
    assert scaled[0]["train/loss"] != raw[0]["train/loss"]
    assert scaled[0]["rollout/episodes"] == raw[0]["rollout/episodes"] == 16
    assert all(row["train/logprob_gap"] < 1e-5 for row in scaled)


def test_a_deviation_is_never_smaller_than_what_will_move():
    states = np.zeros((1000, 3), np.float32)
    states[:, 0] = np.linspace(-2, 4, 1000)
    states[:, 1] = 7.0
    states[:, 2] = 1e-5 * np.arange(1000)
    found = deviations(states)
    assert np.allclose(found["mean"], [1, 7, 1e-5 * 499.5], atol=1e-6)
    assert np.allclose(found["std"], [6 / np.sqrt(12), SMALLEST, SMALLEST], rtol=2e-3)


def test_each_start_is_looked_at_once_however_large_the_groups_are(monkeypatch):
    """And it is no iteration: the first one leaves the first trace."""
    looked = []
    run_plan = Collector._run

    def watched(collector, plan, job, *more):
        looked.append((job.iteration, [(one.start.task_id, one.start.init_state_id) for one in plan]))
        return run_plan(collector, plan, job, *more)

    monkeypatch.setattr(Collector, "_run", watched)
    groups = ("algorithm.adv_type=grpo", "algorithm.group_size=8", "algorithm.rollout_epoch=2", "rollout.trace=first")
    assert run(*NUMBERS, *groups, "actor.model.value_head=false", "env.train.num_init_states=8") == 0
    (before, starts), (first, grouped), *_ = looked
    assert (before, first) == (-1, 0)
    assert len(starts) == len(set(starts)) == 8
    assert len(set(grouped)) == 1
    traces = sorted(path.name for path in Path("runs/run/trace").iterdir())
    assert [name for name in traces if "train" in name] == ["000001-train.json", "000002-train.json"]


def test_imitation_that_goes_on_keeps_the_scale_and_says_whose_the_actions_are(capsys):
    assert run(*NUMBERS, name="first") == 0
    made = ("env=fake", "episodes=4", "env.num_workers=1", "env.train.horizon=60", "env.train.pictures=false")
    assert demos.main([*made, "--config-dir", str(Path(__file__).parents[1] / "config")]) == 0
    shown = [
        "env=fake", "model=mlp", "actor.model.hidden=16", "actor.model.bins=9", "data=demos/fake", "runner.device=cpu",
        "env.train.pictures=false", "sft.steps_per_iteration=2", "runner.max_epochs=1", "sft.val_samples=4",
        "actor.global_batch_size=8", "actor.micro_batch_size=8", "runner.ckpt_path=runs/first/checkpoints/000002",
        "actor.model.value_head=true", "tracker=jsonl", "runner.val_check_interval=-1", "runner.logger.report=false",
        "--config-dir", str(Path(__file__).parents[1] / "config"),
    ]  # fmt: skip
    for kind in ("auto", "env"):
        capsys.readouterr()
        assert sft.main([*shown, f"sft.statistics={kind}", f"runner.experiment_name={kind}"]) == 0
        assert "ranges of action tokens the env's" in " ".join(capsys.readouterr().out.split())
        assert scale_of(kind, 1) == scale_of("first")


def test_it_is_measured_once_and_a_checkpoint_keeps_it(capsys):
    assert run(*NUMBERS, "runner.max_epochs=4", name="whole") == 0
    assert run(*NUMBERS, name="parts") == 0
    capsys.readouterr()
    assert run(*NUMBERS, "runner.max_epochs=4", name="parts") == 0
    assert run(*NUMBERS, "runner.ckpt_path=runs/whole/checkpoints/000004", name="on") == 0
    assert SAID not in capsys.readouterr().out
    same("parts", "whole")
    assert scale_of("on") == scale_of("whole", 4)
    assert run(*NUMBERS, RAW, name="raw") == 0
    assert run(*NUMBERS, "runner.ckpt_path=runs/raw/checkpoints/000002", name="on-raw") == 0
    assert scale_of("on-raw") is None, "weights that have learnt with the state as it is"


@pytest.mark.parametrize("lag", [1, 2])
def test_the_copy_that_acts_has_it_too(lag):
    """With weights that stand still both give the same log-probs."""
    assert run(*NUMBERS, f"algorithm.max_staleness={lag}", "actor.optim.lr=1e-30", "runner.max_epochs=4") == 0
    assert all(abs(row["train/ratio_max"] - 1) < 1e-4 for row in rows_of(Path("runs/run")))
    assert scale_of("run", 4) is not None


def test_two_processes_have_the_scale_of_one():
    options = (*NUMBERS, "actor.fsdp_config.strategy=replicate")
    assert run(*options, name="one") == 0
    with started(*options, name="two", forks=True) as process:
        assert finished(process) == 0
    assert scale_of("two") == scale_of("one")


@pytest.mark.slow
def test_a_process_that_only_collects_has_the_scale_of_the_one_that_trains():
    still = ("algorithm.max_staleness=1", "actor.optim.lr=1e-30")
    options = (*NUMBERS, "actor.fsdp_config.strategy=replicate", *still)
    assert run(*options, name="one") == 0
    placed = "cluster.component_placement={actor: 0, rollout: 1}"
    with started(*options, placed, name="apart", forks=True) as process:
        assert finished(process) == 0
    assert scale_of("apart") == scale_of("one")
    assert all(abs(row["train/ratio_max"] - 1) < 1e-4 for row in rows_of(Path("runs/apart")))


def test_a_robot_is_not_moved_for_it(tmp_path, capsys):
    robot = [f"env.{side}._target_=robot_envs.Robot" for side in ("train", "eval")]
    (tmp_path / "robot").mkdir()
    robot += [f"+env.{side}.folder={tmp_path / 'robot'}" for side in ("train", "eval")]
    assert run(*NUMBERS, *robot, "env.start_method=spawn", name="robot") == 0
    assert SAID not in capsys.readouterr().out
    assert scale_of("robot") is None
