"""Soft actor-critic with demonstrations beside its own records: what it gains, the same bits again, two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embodied import train
from embodied.tools import demos

pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
pytest.importorskip("gymnasium")
CAR = (
    "env@env.train=gym", "env@env.eval=gym", "env.train.id=MountainCarContinuous-v0", "env.train.success=terminated",
    "env.train.images=[]", "env.train.max_episode_steps=150", "env.num_workers=1",
)  # fmt: skip
SIZES = (
    *CAR, "algorithm=sac", "experiment=null", "env.eval.max_episode_steps=150", "tracker=jsonl", "runner.device=cpu",
    "env.train.total_num_envs=2", "env.eval.total_num_envs=4", "env.eval.episodes_per_task=8",
    "env.eval.video_cfg.save_video=false", "actor.model.hidden=64", "actor.model.num_action_chunks=5",
    "actor.model.state_low=[-1.2,-0.07]", "actor.model.state_high=[0.6,0.07]", "actor.model.temperature=0.01",
    "algorithm.sac.learn_temperature=false", "algorithm.sac.learning_starts=60", "algorithm.sac.target_rate=0.02",
    "algorithm.sac.updates_per_record=2", "algorithm.rollout_epoch=1",
    "actor.optim.lr=1e-3", "actor.optim.value_lr=1e-3", "actor.global_batch_size=64", "actor.micro_batch_size=64",
    "runner.val_check_interval=-1", "runner.experiment_name=run",
)  # fmt: skip
SHOWN = "algorithm.replay.demonstrations=[{}]"
NAMES = ("train/critic_loss", "train/actor_loss", "train/q_mean", "rollout/return_mean", "train/demonstrations")


@pytest.fixture(scope="module")
def car(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("demos")
    keys = (*CAR, "env.train.expert=scripted_experts.swinging", "episodes=6", f"demos.path={folder}/car")
    assert demos.main(list(keys)) == 0
    return SHOWN.format(folder / "car")


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def ran(folder: Path, *keys: str) -> list[dict[str, Any]]:
    assert train.main([*SIZES, f"runner.output_dir={folder}", *keys]) == 0
    return logged(folder)


@pytest.mark.slow
def test_a_sparse_task_is_learnt_with_demonstrations_and_not_without(tmp_path: Path, car: str) -> None:
    keys = ("runner.max_epochs=20", "runner.save_interval=20", "runner.val_check_interval=20")
    alone = ran(tmp_path / "alone", *keys)
    beside = ran(tmp_path / "beside", car, *keys)
    assert alone[-1]["eval/success_rate"] <= 0.1
    assert beside[-1]["eval/success_rate"] >= 0.8, [line.get("rollout/success_rate") for line in beside]
