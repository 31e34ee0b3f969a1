"""Whole runs whose processes collect or train: the numbers depend on how many train, and on nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import seeded_runs
import torch
from test_run import lasting, lines, rows, run, wait_for
from test_run_ranks import (  # noqa: F401 (a fixture)
    USUAL,
    WAIT_S,
    alive,
    descendants,
    finished,
    in_tmp_path,
    pid_of_rank,
    started,
)

APART, APART_2, HYBRID = "{actor: 0, rollout: 1}", "{rollout: 0-1, actor: 2}", "{actor: 0, rollout: 0-1}"
ONLY_APART = ("rollout/weight_sync_bytes", "time/rank_wait_share")
COMMON = (*USUAL, "actor.fsdp_config.strategy=replicate", "runner.max_epochs=3", "runner.val_check_interval=2")
REFILLS = (
    "algorithm.dynamic_sampling=true", "algorithm.max_sampling_rounds=3", "algorithm.group_size=2",
    "env.train.reward_mode=sparse", "env.train.success_distance=0.8",
)  # fmt: skip
KINDS = {
    "grpo": (*REFILLS, "algorithm.kl_beta=0.1"),
    "ppo": ("algorithm=ppo", "algorithm.update_epoch=2", "actor.global_batch_size=8", "actor.micro_batch_size=4"),
    "recomputed": ("algorithm=ppo", "rollout.recompute_logprobs=true"),
    "penalties": ("algorithm.kl_beta=0.1", "algorithm.use_kl_in_reward=true", "actor.optim.ema_decay=0.9"),
    "remax": ("algorithm.adv_type=remax", "algorithm.loss_type=gspo"),
    "filtered": ("algorithm.filter_rewards=true", "algorithm.rewards_lower_bound=0.4",
                 "algorithm.rewards_upper_bound=9"),
    "stale": ("algorithm.max_staleness=1", "runner.weight_sync_interval=2", "algorithm.loss_type=tis"),
    "text": (
        "env=fake_text", "model=fake_text", "runner.task_type=math", "algorithm.group_size=4",
        "env.eval.episodes_per_task=4", "env.train.reward_mode=sparse", "env.eval.max_episode_steps=1",
        "env.train.max_episode_steps=1", "algorithm.val_sampling_params.do_sample=true",
    ),
}  # fmt: skip


def together(*overrides: str, name: str, size: int = 1, placement: str = "") -> None:
    """Makes a run of ``size`` processes."""
    placed = [f"cluster.component_placement={placement}"] if placement else []
    if size == 1:
        assert run(*COMMON, *overrides, name=name) == 0
        return
    with started(*COMMON, *overrides, *placed, name=name, forks=True, size=size) as process:
        assert finished(process) == 0


def same(one: str, other: str) -> None:
    """Compares all metrics but times, and all tensors of the last checkpoints, bit by bit."""
    found, expected = (
        [{key: value for key, value in row.items() if key not in ONLY_APART} for row in lasting(rows(name))]
        for name in (one, other)
    )
    assert found == expected
    got, wanted = (seeded_runs.tensors(Path("runs", name)) for name in (one, other))
    assert sorted(got) == sorted(wanted)
    assert [name for name in got if not torch.equal(got[name], wanted[name])] == []


def test_the_numbers_are_those_of_the_processes_that_train():
    options = (*KINDS["grpo"], "algorithm.max_staleness=1")
    together(*options, name="one")
    together(*options, name="apart", size=3, placement=APART_2)
    same("apart", "one")
    assert any(row.get("rollout/sampling_rounds", 1) > 1 for row in rows("one")), "groups were refilled"
    assert sum(row["rollout/weight_sync_bytes"] for row in rows("apart")) > 0
    out = Path("out").read_text(encoding="utf-8")
    assert out.count("3 iterations done") == 1, "rank 0 alone speaks"
    assert "0, 1 (2) collect, 2 (1) train" in out
    logs = sorted(path.name for path in Path("runs/apart/logs").iterdir())
    assert logs == ["rank-00", "rank-01"], "who trains has no simulators"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "placement"), [(2, APART), (2, HYBRID)], ids=["apart", "hybrid"])
def test_one_trains(kind, size, placement):
    together(*KINDS[kind], name="one")
    together(*KINDS[kind], name="other", size=size, placement=placement)
    same("other", "one")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
@pytest.mark.parametrize("kind", ["grpo", "ppo", "text"])
def test_two_train(kind, strategy):
    options = (*KINDS[kind], f"actor.fsdp_config.strategy={strategy}", "actor.enable_dp_load_balance=true")
    together(*options, name="two", size=2)
    for size, placement in ((3, "{rollout: 0, actor: 1-2}"), (4, "{actor: 0-1, rollout: 2-3}")):
        together(*options, name=f"of-{size}", size=size, placement=placement)
        same(f"of-{size}", "two")


@pytest.mark.slow
def test_a_run_goes_on_in_another_placement():
    often = ("runner.save_interval=1", "runner.val_check_interval=1")  # a run evaluates at its end in any case
    options = ("algorithm.max_staleness=1", "actor.optim.ema_decay=0.5", *often)
    together(*options, "runner.max_epochs=4", name="whole")
    together(*options, "runner.max_epochs=1", name="moved", size=2, placement="{rollout: 0, actor: 1}")
    together(*options, "runner.max_epochs=2", name="moved")
    together(*options, "runner.max_epochs=4", name="moved", size=3, placement=APART_2)
    same("moved", "whole")
    said = Path("out").read_text(encoding="utf-8")
    assert "going on after iteration 2, from " in said, "rank 0, which only collects, says it"
    assert "processes that train:" not in said, "one trains all the time"


SLOW = (*COMMON, "env.train.step_s=0.01", "runner.max_epochs=500", "runner.save_interval=1", "cluster.timeout_s=60")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_all(rank):
    """Rank 0 trains, rank 1 collects."""
    with started(*SLOW, f"cluster.component_placement={APART}") as process:
        wait_for(lambda: lines(Path("runs/run/metrics.jsonl")) >= 1 or process.poll() is not None, WAIT_S)
        pid, everyone = pid_of_rank(process, rank), descendants(process.pid)
        os.kill(pid, signal.SIGKILL)
        assert finished(process) != 0
        wait_for(lambda: not any(map(alive, everyone)), WAIT_S)
    root = Path("error").read_text(encoding="utf-8").partition("Root Cause")[2]
    assert f"exitcode  : -9 (pid: {pid})" in root
    assert f"rank      : {rank} " in root


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_an_update_that_fails_ends_all(staleness):
    broken = (
        "actor.model._target_=meeting_policies.Meets",
        "+actor.model.fails=3",
        f"algorithm.max_staleness={staleness}",
    )
    with started(*SLOW, *broken, "cluster.component_placement={rollout: 0, actor: 1}") as process:
        assert finished(process) != 0
    error = Path("error").read_text(encoding="utf-8")
    assert "RuntimeError: the policy was told to fail in a pass" in error
    assert "rank      : 1 " in error[error.index("Root Cause") :]


@pytest.mark.slow
def test_weights_that_went_ahead_and_do_not_arrive_end_all():
    broken = ("actor.model._target_=ahead_policies.Withheld", "algorithm.max_staleness=1", "cluster.timeout_s=10")
    with started(*SLOW, *broken, "cluster.component_placement={rollout: 0, actor: 1}") as process:
        assert finished(process) != 0
    error = Path("error").read_text(encoding="utf-8")
    assert "rank 0 waited for the other ranks in vain" in error
    assert "rank      : 0 " in error[error.index("Root Cause") :]


@pytest.mark.slow
def test_a_stop_ends_all_with_a_checkpoint():
    options = (*SLOW, f"cluster.component_placement={APART}")
    with started(*options) as process:
        wait_for(lambda: lines(Path("runs/run/metrics.jsonl")) >= 1 or process.poll() is not None, WAIT_S)
        os.kill(process.pid, signal.SIGTERM)
        assert finished(process) != 0
    done = len(rows())
    assert f"stopped: {done} iteration" in Path("out").read_text(encoding="utf-8")
    together(*SLOW, f"runner.max_epochs={done + 1}", name="run")
    together(*SLOW, f"runner.max_epochs={done + 1}", name="whole")
    same("run", "whole")


@pytest.mark.parametrize(
    ("placement", "overrides", "text"),
    [
        ("{actor: 0-2, rollout: 0}", [], "is 2, and the 3 processes that train cannot share them equally"),
        ("{actor: 0, rollout: 0-2}", [], "the 3 processes that collect episodes cannot share it equally"),
    ],
)
def test_what_cannot_be_shared_is_refused(monkeypatch, capsys, placement, overrides, text):
    for name, value in {"WORLD_SIZE": 3, "LOCAL_RANK": 0, "RANK": 0, "MASTER_ADDR": "a", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert run(*COMMON, *overrides, f"cluster.component_placement={placement}") == 2
    assert text in capsys.readouterr().err
