"""Soft actor-critic with demonstrations beside its own records: what it gains, the same bits again, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from biased_policy import Biased
from serving_rig import serving

from embodied import train
from embodied.learn.actor_critic.learner import ActorCriticLearner
from embodied.learn.actor_critic.memory import Memory
from embodied.testing import FakeEnv
from embodied.tools import demos

pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
CONFIG = ("--config-dir", str(Path(__file__).parents[1] / "config"))
POINT = ("action_dim=2", "state_dim=2", "pictures=false", "success_distance=0.04", "num_tasks=1")
SIZES = (
    "env=fake", "experiment=null", "algorithm=sac", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    *(f"env.{side}.{key}" for side in ("train", "eval") for key in (*POINT, "max_episode_steps=24")),
    "env.train.total_num_envs=8", "env.eval.episodes_per_task=16", "env.eval.video_cfg.save_video=false",
    "actor.model.num_action_chunks=2", "actor.model.hidden=32", "actor.model.temperature=0.01",
    "algorithm.gamma=0.9", "algorithm.sac.learn_temperature=false", "algorithm.sac.target_rate=0.05",
    "algorithm.sac.learning_starts=60", "actor.optim.lr=2e-3", "actor.optim.value_lr=2e-3",
    "actor.global_batch_size=64", "actor.micro_batch_size=64", "runner.val_check_interval=-1",
    "runner.experiment_name=run",
)  # fmt: skip
NAMES = ("train/critic_loss", "train/actor_loss", "train/q_mean", "rollout/return_mean", "train/demonstrations")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("demos")
    keys = [f"env.train.{key}" for key in POINT] + [f"env.eval.{key}" for key in POINT]
    made = ["env=fake", "episodes=20", "env.num_workers=1", f"demos.path={folder}/made"]
    assert demos.main([*made, *keys, *CONFIG]) == 0
    return f"algorithm.replay.demonstrations=[{folder}/made]"


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def ran(folder: Path, *keys: str) -> list[dict[str, Any]]:
    assert train.main([*SIZES, f"runner.output_dir={folder}", *keys, *CONFIG]) == 0
    return logged(folder)


@pytest.mark.slow
def test_a_sparse_task_is_learnt_with_demonstrations_and_not_without(tmp_path: Path, shown: str) -> None:
    keys = ("runner.max_epochs=20", "runner.save_interval=20", "runner.val_check_interval=20")
    alone, beside = ran(tmp_path / "alone", *keys), ran(tmp_path / "beside", shown, *keys)
    assert alone[-1]["eval/success_rate"] <= 0.25
    assert beside[-1]["eval/success_rate"] >= alone[-1]["eval/success_rate"] + 0.5


def test_a_ring_is_laid_out_for_what_the_run_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memories: list[Memory] = []
    monkeypatch.setattr(ActorCriticLearner, "close", lambda learner: memories.append(learner.memory))
    found = ran(tmp_path, "runner.max_epochs=2", "algorithm.sac.learning_starts=1000")
    (memory,) = memories
    assert memory.ring.total == found[-1]["train/replay_entries"] > 0
    assert memory.ring.total <= memory.ring.room == 2 * 8 * (12 + 1)
    assert memory.ring.capacity == 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [(), ("model=head_residual", "+actor.model.base._target_=biased_policy.Biased", "actor.model.residual_scale=0.6")],
    ids=["from_scratch", "residual"],
)
def test_a_run_that_goes_on_is_the_run_that_was_not_stopped(tmp_path: Path, shown: str, head: tuple[str, ...]) -> None:
    keys = (*head, shown, "runner.save_interval=1", "runner.checkpoint.max_keep=-1")
    whole = ran(tmp_path / "whole", *keys, "runner.max_epochs=4")
    ran(tmp_path / "parts", *keys, "runner.max_epochs=2")
    kept = tmp_path / "parts" / "run" / "replay" / "demonstrations" / "rank-0.npz"
    asked_at = kept.stat().st_mtime_ns if head else 0
    parts = ran(tmp_path / "parts", *keys, "runner.max_epochs=4")
    for name in NAMES:
        assert [line.get(name) for line in whole] == [line.get(name) for line in parts], name
    assert whole[-1]["train/optimizer_steps"] > 0
    assert kept.exists() == bool(head)
    assert not head or kept.stat().st_mtime_ns == asked_at, "the base is not asked again"


@pytest.mark.slow
def test_a_served_base_learns_of_demonstrations_what_one_in_the_process_learns(tmp_path: Path, shown: str) -> None:
    keys = ("model=head_residual", "actor.model.residual_scale=0.6", shown, "runner.max_epochs=3")
    here = ran(tmp_path / "here", *keys, "+actor.model.base._target_=biased_policy.Biased")
    base = Biased()
    spec = FakeEnv(action_dim=2, state_dim=2, pictures=False, success_distance=0.04, num_tasks=1).spec
    base.bind(spec)
    with serving(base, spec) as served:
        there = ran(tmp_path / "there", *keys, f"actor.model.base.url=ws://{served.address}")
    for name in NAMES:
        assert [line.get(name) for line in there] == pytest.approx([line.get(name) for line in here], rel=1e-4), name
    assert there[-1]["train/optimizer_steps"] > 0
    assert (tmp_path / "there" / "run" / "replay" / "demonstrations" / "rank-0.npz").exists()


@pytest.mark.slow
def test_two_processes_have_a_part_of_the_demonstrations_each(tmp_path: Path, shown: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    done = subprocess.run(
        [*command, "embodied.train", *SIZES, shown, f"runner.output_dir={tmp_path}", "runner.max_epochs=2", *CONFIG],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=500, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    one = ran(tmp_path / "one", shown, "runner.max_epochs=2")[-1]
    two = logged(tmp_path)[-1]
    assert two["train/demonstrations"] == one["train/demonstrations"] > 0
    assert two["train/records"] == 64 * two["train/optimizer_steps"] > 0
