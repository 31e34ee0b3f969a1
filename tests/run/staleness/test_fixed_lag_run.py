"""Runs with ``algorithm.max_staleness`` of 2 and more: which weights act in what, and that nothing else changes it."""

from __future__ import annotations

import os
import random
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lagged import Watched, before
from logged import rows_of
from seeded_runs import tensors

from embodied import train
from embodied.errors import ConfigError
from embodied.run.memory.footprint import sets_that_act
from embodied.runtime.rollout.flowing import Flowing
from embodied.schema.compose.compose import compose
from embodied.testing import FakePolicy

CONFIG = str(Path(__file__).parents[2] / "config")
EPISODES, ITERATIONS = 16, 5
FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", f"runner.max_epochs={ITERATIONS}",
    "runner.save_interval=-1", "runner.val_check_interval=-1", "env.train.max_episode_steps=10",
    "env.train.reward_mode=dense", "env.eval.max_episode_steps=6", "env.eval.video_cfg.save_video=false",
    "env.num_workers=1", "algorithm.group_size=4", "env.train.total_num_envs=4", "algorithm.rollout_epoch=4",
    "rollout.policy_batch=4", "env.start_method=forkserver",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*keys: str, lag: int = 2, name: str = "run") -> int:
    options = (*FAST, f"algorithm.max_staleness={lag}", *keys, f"runner.experiment_name={name}")
    return train.main([*options, "--config-dir", CONFIG])


def outcome(name: str = "run") -> tuple[list[dict[str, float]], dict[str, bytes]]:
    """Metrics that last, and all tensors of the last checkpoint, those of the sets that act included."""
    folder = Path("runs", name)
    return rows_of(folder), {key: value.numpy().tobytes() for key, value in tensors(folder).items()}


@pytest.mark.parametrize("lag", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_rollouts_have_the_weights_of_so_many_iterations_before_and_each_episode_is_trained_on_once(monkeypatch, lag):
    watched = Watched(monkeypatch, lambda policy, records, sampling: policy.evaluate(records, sampling).logprobs)
    assert run("runner.val_check_interval=2", lag=lag) == 0
    acted = watched.check(lag, ITERATIONS, EPISODES * ITERATIONS)
    assert watched.present == [True] * 3
    assert [row["train/staleness_max"] for row in rows_of("runs/run")] == [
        iteration - version for iteration, version in enumerate(acted)
    ]


REFILLS = (
    "algorithm.dynamic_sampling=true",
    "algorithm.filter_reward_metric=success",
    "algorithm.max_sampling_rounds=2",
)
VALUES = ("algorithm=ppo", "algorithm.group_size=4", "algorithm.rollout_epoch=4")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("algorithm.loss_type=tis",), marks=pytest.mark.slow, id="tis"),
        pytest.param(REFILLS, id="refills"),
        pytest.param(VALUES, marks=pytest.mark.slow, id="values"),
    ],
)
def test_slots_timing_and_killed_workers_change_no_bit(monkeypatch, more):
    assert run(*more, "runner.val_check_interval=2", name="calm") == 0
    choose, calls, rollouts = random.Random(3), list[int](), list[Any]()

    def kill(*_: Any) -> None:
        calls.append(1)
        if len(calls) % 12 == 0:
            with suppress(ProcessLookupError, IndexError):  # it is being replaced
                os.kill(choose.choice(rollouts[-1]._envs.pids), signal.SIGKILL)

    before(monkeypatch, Flowing, "_turn", rollouts.append)
    before(monkeypatch, FakePolicy, "act", kill)
    other = ("env.train.total_num_envs=8", "algorithm.rollout_epoch=2", "env.num_workers=2")
    uneven = ("env.train._target_=uneven_envs.Erratic", "env.max_worker_restarts=1000", "runner.val_check_interval=2")
    assert run(*more, *other, *uneven, name="rough") == 0
    assert sum(row["rollout/worker_restarts"] for row in rows_of("runs/rough")) > 0
    (calm, weights), (rough, others) = outcome("calm"), outcome("rough")
    for row in (*calm, *rough):
        for varies in ("rollout/worker_restarts", "eval/worker_restarts"):
            row.pop(varies, None)
    assert rough == calm
    assert others == weights
    assert len([name for name in weights if name.startswith("trainer/acting.1.")]) > 1


# -- goes on where it stopped ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        assert run("runner.val_check_interval=2") == 0
        return outcome()


@pytest.mark.slow
def test_a_run_that_is_made_longer_equals_one_that_was_longer_from_the_start():
    assert run(name="whole") == 0
    for iterations in (1, 3, ITERATIONS):
        assert run(f"runner.max_epochs={iterations}") == 0
    assert outcome() == outcome("whole")


@pytest.mark.parametrize(("method", "call"), [("act", 30), pytest.param("evaluate", 4, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_ends_as_one_that_never_was(monkeypatch, never_stopped, method, call):
    """Stopped by a decision while several rollouts are under way, and by a pass of an update beside them."""
    calls: list[int] = []

    def stop(*_: Any) -> None:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        before(patch, FakePolicy, method, stop)
        assert run("runner.val_check_interval=2") == 143
    assert 0 < len(rows_of("runs/run")) < ITERATIONS
    assert run("runner.val_check_interval=2") == 0
    assert outcome() == never_stopped


# -- slots do not wait -------------------------------------------------------------------------------------------------

STRAGGLES = (
    "env.train._target_=uneven_envs.Straggles", "+env.train.folder=${oc.env:PWD}", "+env.train.starts=4",
    "env.num_workers=4", "runner.max_epochs=4", "+env.train.since=1", "+env.train.until=1",
)  # fmt: skip


@pytest.mark.parametrize(("lag", "vain"), [pytest.param(1, True, marks=pytest.mark.slow), (2, False)])
def test_from_two_on_slots_flow_over_the_border_of_iterations(tmp_path, lag, vain):
    """The first group of rollout 1 waits until an episode of rollout 3 is stepped, whose weights are there once update
    0 has ended. With a lag of 1 it waits in vain: they are there once rollout 1 has ended. Each slot has a worker: one
    that waits would hold up another slot of its worker, and with it rollout 0."""
    patience = 0.2 if vain else 60
    keys = [key.replace("${oc.env:PWD}", str(tmp_path)) for key in STRAGGLES]
    keys += ["env.train.total_num_envs=8", "algorithm.rollout_epoch=2", "env.num_workers=8"]
    assert run(*keys, f"+env.train.patience_s={patience}", "+env.train.ahead=2", lag=lag) == 0
    assert Path("in-vain").exists() == vain


# -- what is counted and refused ---------------------------------------------------------------------------------------


def test_a_dry_run_counts_the_sets_of_weights_and_the_rows(capsys):
    found = {}
    for lag in (0, 2):
        assert run("runner.dry_run=true", lag=lag) == 0
        said = capsys.readouterr().out
        found[lag] = int(next(re.finditer(r"slab +(\d+) records", said))[1])
        config = compose([*FAST, f"algorithm.max_staleness={lag}"], "train", [CONFIG]).config
        assert sets_that_act(config) == lag
    assert found[2] == 3 * found[0]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("runner.weight_sync_interval=2",), "set runner.weight_sync_interval=1, or algorithm.max_staleness=1"),
        (("algorithm.adv_type=remax",), "set algorithm.max_staleness=1, or another algorithm.adv_type"),
        (("env.enable_offload=true",), "set env.enable_offload=false"),
        (("rollout.backend=vllm",), "rollout.backend=native"),
    ],
)
def test_what_does_not_go_together_is_refused(keys, text):
    with pytest.raises(ConfigError) as failed:
        compose(["env=fake", "model=fake", "algorithm.max_staleness=2", *keys], "train", [CONFIG])
    assert text in str(failed.value)
