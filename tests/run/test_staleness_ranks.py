"""Two processes whose rollouts run beside their updates: that they do, the same numbers, and how they end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from test_run import lasting, lines, rows, run, wait_for
from test_run_ranks import (  # noqa: F401 (a fixture)
    USUAL,
    WAIT_S,
    checkpoints,
    finished,
    in_tmp_path,
    pid_of_rank,
    started,
    weights,
)

MEETS = "actor.model._target_=meeting_policies.Meets"
BESIDE = (
    *USUAL, "algorithm.max_staleness=1", "actor.fsdp_config.strategy=replicate", "runner.max_epochs=4", MEETS,
    "runner.save_interval=1", "actor.global_batch_size=64", "actor.micro_batch_size=2",
)  # fmt: skip
"""One optimizer step an iteration, of many passes."""


def whole(*more: str, name: str = "run") -> None:
    with started(*BESIDE, *more, name=name, forks=True) as process:
        assert finished(process) == 0


def same(one: str, other: str, iterations: int) -> None:
    assert lasting(rows(one)) == lasting(rows(other))
    expected = weights(iterations, other)
    assert all(torch.equal(value, expected[name]) for name, value in weights(iterations, one).items())


def test_rollouts_run_beside_updates_and_a_stop_changes_nothing():
    """Both ranks decide beside each of three updates. Later, rank 1 is stopped beside an update."""
    slow = ("+actor.model.evaluate_s=0.1", "runner.stop_timeout_s=0.5")
    Path("meet").write_text("3", encoding="utf-8")
    whole(*slow, name="met")
    assert [Path(f"met-{rank}").read_text(encoding="utf-8") for rank in range(2)] == ["yyyyyy"] * 2
    assert [row["train/staleness_max"] for row in rows("met")] == [0, 1, 1, 1]
    Path("meet").unlink()
    with started(*BESIDE, *slow) as process:
        wait_for(lambda: lines(Path("runs/run/metrics.jsonl")) >= 1 or process.poll() is not None, WAIT_S)
        os.kill(pid_of_rank(process, 1), signal.SIGTERM)
        assert finished(process) == 1, "torchrun says that its ranks were ended"
    assert checkpoints()[-1] in ("000001", "000002")
    Path("hurry").touch()
    whole(*slow)
    same("run", "met", 4)


def test_an_update_that_fails_in_one_rank_ends_all_of_them():
    began = time.monotonic()
    with started(*BESIDE, "+actor.model.fails=20", "cluster.timeout_s=300", "env.train.step_s=0.01") as process:
        assert finished(process) != 0
    assert time.monotonic() - began < 100
    error = Path("error").read_text(encoding="utf-8")
    assert "RuntimeError: the policy was told to fail in a pass" in error
    assert "rank      : 1 " in error[error.index("Root Cause") :]


def test_a_policy_that_is_shared_out_has_no_copy_that_acts():
    with started(*BESIDE, "actor.fsdp_config.strategy=fsdp2", forks=True) as process:
        assert finished(process) != 0
    error = Path("error").read_text(encoding="utf-8")
    assert "each with its part of the policy (fsdp2, 1 units)" in error
    assert "fix: set actor.fsdp_config.strategy=replicate" in error
    assert run(*BESIDE, "actor.fsdp_config.strategy=fsdp2", "runner.max_epochs=0") == 0, "one process shares nothing"
