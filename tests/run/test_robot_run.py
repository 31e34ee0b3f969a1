"""A robot learns by the command line: no episode twice, resets beside updates, interventions, a lost worker."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robot_envs import resets, stops

from embodied import train
from embodied.learn.replay.ring import Replay
from embodied.types import ArraySpec

EPISODES, CHUNKS = 2, 8
BASE = ("model=head_residual", "+actor.model.base._target_=biased_policy.Biased", "actor.model.residual_scale=0.6")


def ran(folder: Path, *keys: str, status: int = 0) -> list[dict[str, Any]]:
    """Trains with a robot of files in ``folder``; returns the metrics of its iterations."""
    folder.mkdir(exist_ok=True)
    sides = [f"env.{side}.{key}" for side in ("train", "eval") for key in (
        "_target_=robot_envs.Helped", "action_dim=2", "state_dim=2", "pictures=false", "success_distance=0",
        f"max_episode_steps={2 * CHUNKS}", "num_tasks=1", "total_num_envs=1", "reward_mode=dense",
    )]  # fmt: skip
    more = [f"+env.{side}.folder={folder}" for side in ("train", "eval")]
    code = train.main([
        "--config-dir", str(Path(__file__).parents[1] / "config"), "env=fake", "experiment=null", "algorithm=sac",
        "tracker=jsonl", "runner.device=cpu", *sides, *more, "env.eval.episodes_per_task=2",
        "env.eval.video_cfg.save_video=false", f"algorithm.rollout_epoch={EPISODES}", "actor.model.num_action_chunks=2",
        "actor.model.hidden=16", "algorithm.sac.learning_starts=20", "actor.global_batch_size=16",
        "actor.micro_batch_size=16", "runner.val_check_interval=-1", "runner.save_interval=-1",
        "runner.experiment_name=run", f"runner.output_dir={folder}", *keys,
    ])  # fmt: skip
    assert code == status
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def remembered(folder: Path, iteration: int) -> dict[str, np.ndarray]:
    """All entries of a saved run's memory."""
    meta = folder / "run" / "checkpoints" / f"{iteration:06d}" / "meta.json"
    state = json.loads(meta.read_text(encoding="utf-8"))["trainer"]["replay"][0]
    fields = {
        "state": ArraySpec((2,), "float32"), "chunk": ArraySpec((4,), "float32"), "rewards": ArraySpec((2,), "float32"),
        "num_steps": ArraySpec((), "int32"), "terminated": ArraySpec((), "bool"),
        "demonstrated": ArraySpec((), "bool"),
    }  # fmt: skip
    origin = "robot_envs.Helped and embodied.models.head.HeadPolicy"
    ring = Replay.open(folder / "run" / "replay" / "rank-0", fields, 1_000_000, None, origin, (0, 1))
    ring.load_state_dict(state)
    found = ring.batch(np.arange(len(ring)), fields)
    ring.close()
    return found


@pytest.mark.slow
def test_a_robot_is_reset_beside_the_updates_and_learns_the_same(tmp_path: Path):
    keys = (
        "model=head",
        "runner.max_epochs=5",
        "algorithm.sac.updates_per_record=4",
        "+env.train.reset_s=0.8",
        "+env.eval.reset_s=0.8",
    )
    beside = ran(tmp_path / "beside", *keys)
    after = ran(tmp_path / "after", *keys, "algorithm.sac.reset_beside_update=false")
    for name in ("train/critic_loss", "train/actor_loss", "train/q_mean", "rollout/return_mean"):
        assert [line.get(name) for line in beside] == [line.get(name) for line in after], name
    made = [[line[:3] for line in resets(tmp_path / which)] for which in ("beside", "after")]
    assert made[0] == made[1]
    assert max(Counter(made[0]).values()) == 1, "no start was executed twice"
    assert len(made[0]) == 5 * EPISODES
    seconds = [sum(line["time/rollout_s"] for line in run[2:]) for run in (beside, after)]
    hidden = sum(min(0.8, line["time/train_s"]) for line in beside[1:-1])  # of a reset, by the update beside it
    assert hidden > 0.3
    assert seconds[1] - seconds[0] > hidden / 2


@pytest.mark.slow
def test_what_a_human_did_is_what_is_learnt_from(tmp_path: Path):
    found = ran(tmp_path, "model=head", "runner.max_epochs=3", "+env.train.helped=2", "+env.eval.helped=2")
    assert [line["rollout/intervention_share"] for line in found] == [1, 0, 0]
    kept = remembered(tmp_path, 3)
    marked, steps = kept["demonstrated"], kept["num_steps"]
    assert marked.sum() == (steps[: np.flatnonzero(steps == 0)[EPISODES - 1]] > 0).sum()
    towards = np.clip(10 * kept["state"], -1, 1)  # the human goes straight to the goal; a state is the way to it
    later = marked & np.roll(marked, 1) & (steps > 0)  # not the first record, whose first step was the policy's
    assert later.sum() > EPISODES
    assert np.abs(kept["chunk"][later][:, :2] - towards[later]).max() < 1e-5
    own = ~marked & (steps > 0)
    assert np.abs(kept["chunk"][own][:, :2] - towards[own]).max() > 0.1


@pytest.mark.slow
def test_a_residual_learns_on_a_robot_whose_worker_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fault = [f"env.{side}.{key}" for side in ("train", "eval") for key in ("fault=kill", "fault_episode=6")]
    keys = (
        *BASE, "runner.max_epochs=4", "+env.train.helped=3", "+env.eval.helped=3", *(f"+{key}" for key in fault),
    )  # fmt: skip
    first = ran(tmp_path, *keys, status=2)
    said = "".join(capsys.readouterr())
    assert "1 whole episodes (8 records) and 1 in progress of this rollout are dropped, 0 were not begun" in said
    assert "its worker is not replaced" in said
    assert len(stops(tmp_path)) == 1
    assert len(first) == 2
    assert max(Counter(line[:3] for line in resets(tmp_path)).values()) == 1
    found = ran(tmp_path, *keys)  # goes on from the last whole iteration, which was saved although none was due
    assert [line["rollout/records"] for line in found] == [EPISODES * CHUNKS] * 4
    assert found[:2] == first
    assert found[-1]["train/optimizer_steps"] > 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("env.train._target_=robot_envs.Helped", "env.eval._target_=robot_envs.Helped", "+env.train.folder=.",
          "+env.eval.folder=.", "algorithm=grpo", "model=mlp"), "learns from what the policy has drawn"),
        (("env.train._target_=embodied.testing.FakeBatchEnv", "env.eval._target_=embodied.testing.FakeBatchEnv",
          "algorithm=sac", "algorithm.sac.reset_beside_update=true"), "no slot is reset apart from the others"),
    ],
    ids=["policy gradient", "batch"],
)  # fmt: skip
def test_what_cannot_be_is_refused(keys: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    configs = str(Path(__file__).parents[1] / "config")
    assert train.main(["--config-dir", configs, "env=fake", "experiment=null", *keys, "runner.dry_run=true"]) == 2
    assert said in " ".join("".join(capsys.readouterr()).split())
