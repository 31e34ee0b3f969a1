"""A run that is killed at any moment and started again ends as one that never was: the same bits, the same metrics."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import warm
from killed_run import MOMENTS
from logged import lasting_meta
from test_run import FAST, HERE, lasting

from embodied import train

# Everything that a run carries from one iteration to the next: a value head whose warm-up ends in the third iteration
# (until then the rest has no optimizer state), a KL weight that adapts, a reference that moves, averaged weights.
OPTIONS = (
    "algorithm=ppo", "env.train.reward_mode=dense", "algorithm.critic_warmup_steps=14", "algorithm.kl_beta=0.1",
    "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.01", "algorithm.kl_ctrl.horizon=20",
    "algorithm.kl_penalty_type=k2", "algorithm.reference_reset_interval=2",
    "algorithm.reset_optimizer_with_reference=false", "actor.optim.ema_decay=0.9",
    "actor.lr_sched.lr_decay_style=cosine",
    "algorithm.update_epoch=2", "actor.global_batch_size=8", "actor.micro_batch_size=8", "runner.max_epochs=4",
    "runner.save_interval=1", "runner.checkpoint.max_keep=2",
)  # fmt: skip


def arguments(folder: Path, *overrides: str) -> list[str]:
    place = (f"runner.output_dir={folder}", "runner.experiment_name=run", "env.train.video_cfg.save_video=false")
    return [*FAST, *OPTIONS, *place, *overrides, "--config-dir", str(HERE / "config")]


def outcome(folder: Path) -> dict[str, Any]:
    """All metrics that a second run must repeat, and the last checkpoint: weights, optimizer, generators, numbers."""
    checkpoint = folder / "run" / "checkpoints" / "000004"
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "tensors": (checkpoint / "__0_0.distcp").read_bytes(),
        "meta": lasting_meta(checkpoint),
        "rows": lasting(rows),
    }


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    assert train.main(arguments(folder, "runner.checkpoint.async_save=false")) == 0
    result = outcome(folder)
    assert [row["step"] for row in result["rows"]] == [1, 2, 3, 4]
    state = result["meta"]["trainer"]
    assert state["weight_version"] > 14 > result["rows"][1]["train/weight_version"]
    assert state["kl_beta"] != 0.1
    assert {"average.head.weight", "reference.head.weight"} <= state.keys()
    return result


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())


LEFT = {
    "writing": ["000001", "000002", ".writing-000003"],
    "renaming": ["000001", "000002", ".writing-000003"],
    "renamed": ["000001", "000002", "000003"],
    "deleting": ["000002", "000003", ".removing-000001"],
}


@pytest.mark.parametrize(
    ("moment", "async_save"),
    [*((moment, True) for moment in MOMENTS), *((moment, False) for moment in ("rollout", "update", "writing"))],
)
def test_a_run_killed_at_any_moment_ends_as_one_that_never_was(tmp_path, never_killed, moment, async_save):
    command = arguments(tmp_path, f"runner.checkpoint.async_save={async_save}")
    killed = warm.python([HERE / "helpers" / "killed_run.py", moment, *command])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if moment in LEFT:
        assert names(tmp_path) == sorted(LEFT[moment])
    assert train.main(command) == 0
    assert outcome(tmp_path) == never_killed
    assert names(tmp_path) == ["000003", "000004"]


def test_the_ways_of_saving_write_the_same(tmp_path, never_killed):
    assert train.main(arguments(tmp_path, "runner.checkpoint.async_save=true")) == 0
    assert outcome(tmp_path) == never_killed
