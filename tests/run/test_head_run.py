"""A base that is off by a constant, and a head that learns so: success before and after, and the same bits again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from embodied import train

BASE = "+actor.model.base._target_=biased_policy.Biased"
SIZES = (
    "env=fake", "experiment=null", "algorithm=sac", "model=head_residual", BASE, "tracker=jsonl", "runner.device=cpu",
    *(f"env.{side}.{key}" for side in ("train", "eval") for key in (
        "action_dim=2", "state_dim=2", "pictures=false", "success_distance=0.08", "max_episode_steps=24",
        "num_tasks=1", "reward_mode=sparse",
    )),
    "env.train.total_num_envs=8", "env.eval.episodes_per_task=16", "env.num_workers=1",
    "env.eval.video_cfg.save_video=false", "actor.model.hidden=32", "actor.model.residual_scale=0.6",
    "actor.model.temperature=0.01", "algorithm.rollout_epoch=2", "algorithm.gamma=0.9",
    "algorithm.sac.learn_temperature=false", "algorithm.sac.target_rate=0.05", "algorithm.sac.learning_starts=60",
    "actor.optim.lr=2e-3", "actor.optim.value_lr=2e-3", "actor.global_batch_size=64", "actor.micro_batch_size=64",
    "runner.experiment_name=run", "--config-dir", str(Path(__file__).parents[1] / "config"),
)  # fmt: skip


def ran(folder: Path, *keys: str) -> list[dict[str, Any]]:
    assert train.main([*SIZES, f"runner.output_dir={folder}", *keys]) == 0
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def checkpoint(folder: Path, iteration: int) -> dict[str, Any]:
    path = folder / "run" / "checkpoints" / f"{iteration:06d}" / "meta.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_a_head_finds_the_constant_that_its_base_is_off_by(tmp_path: Path):
    keys = ("runner.val_check_interval=10", "runner.save_interval=10", "runner.max_epochs=10")
    base = json.loads(_evaluated(tmp_path / "before"))
    found = ran(tmp_path, *keys)
    before, after = sum(episode["success"] for episode in base["episodes"]) / 16, found[-1]["eval/success_rate"]
    assert before <= 0.2
    assert after >= before + 0.4, (before, after)
    assert not any("base" in name for name in checkpoint(tmp_path, 10)["parameters"])
    assert checkpoint(tmp_path, 10)["settled"]["base"].startswith("weights ")


def _evaluated(folder: Path) -> str:
    """An evaluation of the head that has not learnt: that of its base."""
    keys = [
        key for key in SIZES if not key.startswith(("algorithm", "actor.optim", "actor.g", "actor.mi", "env.train.to"))
    ]
    assert train.main([*keys, f"runner.output_dir={folder}"], "eval") == 0
    return (folder / "run" / "eval" / "000000.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(tmp_path: Path):
    keys = ("runner.save_interval=1", "runner.val_check_interval=-1", "runner.checkpoint.max_keep=-1")
    whole = ran(tmp_path / "whole", *keys, "runner.max_epochs=3")
    ran(tmp_path / "parts", *keys, "runner.max_epochs=2")
    parts = ran(tmp_path / "parts", *keys, "runner.max_epochs=3")
    for name in ("train/critic_loss", "train/actor_loss", "train/q_mean", "rollout/return_mean"):
        assert [line.get(name) for line in whole] == [line.get(name) for line in parts], name
    assert whole[-1]["train/optimizer_steps"] > 0
