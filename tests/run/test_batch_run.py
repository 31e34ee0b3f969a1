"""Whole runs with an env that hosts all slots of a worker: the numbers are those of an env a slot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logged import VARYING

from embodied import train
from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.run.build.simulators import pool_config
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
BATCH = "env.train._target_=embodied.testing.FakeBatchEnv", "env.eval._target_=embodied.testing.FakeBatchEnv"
FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=-1",
    "runner.val_check_interval=1", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=10",
    "env.train.total_num_envs=4", "env.eval.total_num_envs=3", "env.eval.max_episode_steps=6",
    "env.eval.video_cfg.save_video=false",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def metrics(name: str, *overrides: str) -> list[dict[str, float]]:
    arguments = [*FAST, f"runner.experiment_name={name}", *overrides, "--config-dir", CONFIG]
    assert train.main(arguments, "train") == 0
    rows = [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if not VARYING.match(key)} for row in rows]


def test_training_and_evaluation_give_what_an_env_a_slot_gives():
    expected = metrics("singles", "env.num_workers=2")
    assert len(expected) == 2
    assert "eval/success_rate" in expected[0]
    stages = ("env.num_workers=2", "rollout.schedule=lockstep", "rollout.pipeline_stage_num=2")
    assert metrics("one", *BATCH) == expected
    assert metrics("two", *BATCH, *stages) == expected


def checked(*overrides: str):
    return check(compose([*FAST, *BATCH, *overrides], "train", [CONFIG]), Group())


@pytest.mark.parametrize(
    ("overrides", "workers"),
    [
        ((), 1),
        (("env.render_gpus=[0,1]",), 2),
        (("env.num_workers=3",), 3),
    ],
)
def test_there_is_one_worker_a_gpu_unless_told_otherwise(overrides, workers, tmp_path, monkeypatch):
    monkeypatch.setattr("embodied.runtime.pool.placement.NVIDIA", tmp_path / "none")
    found = checked("env.render_gpus=[]", *overrides)
    config = pool_config(found.train, 4, found.config, tmp_path, Group())
    assert (config.num_workers, config.batch) == (workers, True)


@pytest.mark.parametrize("overrides", [("env.num_workers=1",), ("env.num_workers=2", "env.train.total_num_envs=5")])
def test_stages_that_are_not_whole_workers_are_refused(overrides, capsys):
    stages = ("rollout.schedule=lockstep", "rollout.pipeline_stage_num=2", "algorithm.group_size=1")
    arguments = [*FAST, *BATCH, *stages, *overrides, "algorithm.adv_type=reinforce_plus_plus", "--config-dir", CONFIG]
    assert train.main(arguments, "train") == 2
    assert "each worker steps all of its slots together" in capsys.readouterr().err


def test_one_slot_of_a_batch_is_not_measured(capsys):
    from embodied.tools import bench

    assert bench.main([*FAST, *BATCH, "--config-dir", CONFIG]) == 2
    assert "hosts all slots of a worker in one simulator" in capsys.readouterr().err
