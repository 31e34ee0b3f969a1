"""Runs whose acting weights are older than those that learn: which act, what runs at the same time, how they end."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_policies import Slow
from test_run import FAST, HERE, checkpoint_bytes, lasting, rows
from test_stop import RL, late_signals_do_no_harm, outcome, send_at  # noqa: F401 (a fixture)

from embodied import train
from embodied.errors import ConfigError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.trainer import Trainer
from embodied.run.evaluation.evaluator import EvaluationRunner
from embodied.run.training import iteration as turns
from embodied.run.training.collector import Collector
from embodied.schema.compose.compose import compose

DENSE = (*FAST, "env.train.reward_mode=dense", "runner.max_epochs=4")
BESIDE, EVERY_SECOND = "algorithm.max_staleness=1", "runner.weight_sync_interval=2"
SLOW = ("actor.model._target_=slow_policies.Slow",)
LARGE = (*SLOW, "actor.micro_batch_size=1", "runner.stop_timeout_s=0.4", "+actor.model.evaluate_s=0.05")
PATIENCE_S = 60.0  # of a thread for the other; without an overlap it is in vain


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(options: tuple[str, ...], *more: str, name: str = "run") -> int:
    return train.main([*options, *more, f"runner.experiment_name={name}", "--config-dir", str(HERE / "config")])


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, look: Callable[..., object]) -> None:
    """Calls ``look`` before each call of ``owner.name``, with its arguments."""
    original = getattr(owner, name)

    def watched(*args: Any) -> Any:
        look(*args)
        return original(*args)

    monkeypatch.setattr(owner, name, watched)


@pytest.mark.parametrize(
    ("keys", "acted"),
    [((BESIDE,), [0, 0, 1, 2]), ((EVERY_SECOND,), [0, 0, 2, 2]), ((BESIDE, EVERY_SECOND), [0, 0, 1, 1])],
)
def test_the_weights_that_act_are_those_that_are_said(monkeypatch, keys, acted):
    """``acted``: iterations after which the weights of each rollout were there."""
    policies, evaluated, trainers = [], [], []
    gaps: list[list[float]] = []

    def gap(trainer: Trainer, arrays: Any, results: Any, *_: Any) -> None:
        trainers.append(trainer)
        policies.append(copy.deepcopy(trainer.policy))
        records = trainer._own(arrays, results).gather(np.concatenate([result.rows for result in results]))
        with torch.no_grad():
            found = [policy.evaluate(records, trainer.sampling).logprobs for policy in policies]
        gaps.append([float((one - records["logprobs"].reshape(one.shape)).abs().max()) for one in found])

    def present(evaluator: EvaluationRunner, *_: Any) -> None:
        acts = dict(evaluator._simulators.model.policy.named_parameters())
        evaluated.append(all(torch.equal(p, acts[name]) for name, p in trainers[-1].policy.named_parameters()))

    before(monkeypatch, Trainer, "update", gap)
    before(monkeypatch, EvaluationRunner, "evaluate", present)
    assert run(DENSE, *keys, "runner.val_check_interval=1") == 0
    assert [int(np.argmin(found)) for found in gaps] == [0, 0, *acted[2:]]
    for found, iterations in zip(gaps, acted, strict=True):
        assert found[iterations] < 1e-5
        assert all(other > 1e-5 for number, other in enumerate(found) if number != iterations)
    assert evaluated == [True] * 4, "evaluations have the present weights"
    logged = rows()
    expected = [i - iterations for i, iterations in enumerate(acted)]  # one optimizer step each
    assert [row["train/staleness_max"] for row in logged] == expected == [row["train/staleness_mean"] for row in logged]
    assert [("train/logprob_gap" in row) for row in logged] == [lag == 0 for lag in expected]


def test_usually_nothing_is_copied_and_nothing_more_is_saved(monkeypatch):
    seen = []
    before(monkeypatch, Trainer, "update", lambda trainer, *_: seen.append(trainer))
    assert run(DENSE, "runner.max_epochs=1") == 0
    assert seen[0].acting.policy is seen[0].policy
    assert not [name for name in seen[0].state_dict() if name.startswith("acting")]


def test_timing_changes_no_bit_and_rollout_and_update_run_at_the_same_time(monkeypatch):
    """Rollouts 1 to 3 begin when the update before has begun, and updates 0 to 2 wait for decisions of the next."""
    slow = (*DENSE, *SLOW, "+actor.model.act_s=0.01", "+actor.model.evaluate_s=0.03")
    assert run(slow, BESIDE, name="slow") == 0
    Path("hurry").touch()
    updates: list[threading.Event] = [threading.Event() for _ in range(4)]
    decided: list[threading.Event] = [threading.Event() for _ in range(5)]
    met, threads, place = [], set(), [-1]

    def collect(collector: Collector, iteration: int, *_: Any) -> None:
        place[0] = iteration
        if iteration:
            met.append(updates[iteration - 1].wait(PATIENCE_S))

    def act(*_: Any) -> None:
        decided[place[0]].set()
        threads.add(threading.current_thread().name)

    def update(trainer: Trainer, arrays: Any, results: Any, iteration: int, *_: Any) -> None:
        updates[iteration].set()
        threads.add(threading.current_thread().name)
        if iteration < 3:
            met.append(decided[iteration + 1].wait(PATIENCE_S))

    for owner, name, look in ((Collector, "collect", collect), (Slow, "act", act), (Trainer, "update", update)):
        before(monkeypatch, owner, name, look)
    assert run(slow, BESIDE, name="hurried") == 0
    assert met == [True] * 6
    assert len(threads) == 2
    assert lasting(rows("slow")) == lasting(rows("hurried"))
    assert checkpoint_bytes(4, "slow") == checkpoint_bytes(4, "hurried")
    assert torch.get_num_threads() == 1


def test_a_refill_keeps_the_rows_that_an_update_reads(monkeypatch):
    refills = (*DENSE, "algorithm.dynamic_sampling=true", "algorithm.filter_reward_metric=success")
    seen = []

    def compare(trainer: Trainer, arrays: Any, results: Any, *_: Any) -> None:
        rows_read = np.concatenate([result.rows for result in results])
        seen.append((arrays, rows_read, {name: values[rows_read].copy() for name, values in arrays.items()}))

    def unchanged(owner: turns.OneStepOff, *_: Any) -> None:
        arrays, rows_read, values = seen[-1]
        assert all(np.array_equal(arrays[name][rows_read], found) for name, found in values.items())

    before(monkeypatch, Trainer, "update", compare)
    before(monkeypatch, turns.OneStepOff, "_metrics", unchanged)
    assert run(refills, BESIDE, "algorithm.max_sampling_rounds=2", "runner.max_epochs=3") == 0
    assert len(seen) == 3
    assert [row["rollout/sampling_rounds"] for row in rows()] == [2, 2, 2], "nobody succeeds"


# -- goes on where it stopped ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, keys in (("beside", (BESIDE,)), ("every second", (EVERY_SECOND,))):
            patch.chdir(tmp_path_factory.mktemp("whole"))
            assert run(RL, *keys) == 0
            found[name] = outcome("run")
    return found


@pytest.mark.parametrize(
    ("name", "key", "owner", "method", "call"),
    [
        ("beside", BESIDE, Checkpoints, "save", 1), ("every second", EVERY_SECOND, Checkpoints, "save", 1),
        ("beside", BESIDE, Slow, "act", 40), ("beside", BESIDE, Slow, "evaluate", 6),
    ],
)  # fmt: skip
def test_a_run_that_was_stopped_ends_as_one_that_never_was(monkeypatch, never_stopped, name, key, owner, method, call):
    """Stopped after three iterations, when the weights that act are not the present ones; by a decision of the second
    rollout; by a pass of the first update."""
    with monkeypatch.context() as patch:
        send_at(patch, owner, method, call)
        assert run(RL, key) == 143
    assert len(rows()) == (3 if method == "save" else 1)
    state = outcome("run")["meta"]["trainer"]
    assert state["acting_version"] < state["weight_version"]
    assert run(RL, key) == 0
    assert outcome("run") == never_stopped[name]


def test_a_run_that_is_made_longer_equals_one_that_was_longer_from_the_start():
    assert run(DENSE, BESIDE, name="whole") == 0
    assert run(DENSE, BESIDE, "runner.max_epochs=2") == 0
    assert run(DENSE, BESIDE) == 0
    assert lasting(rows()) == lasting(rows("whole"))
    assert checkpoint_bytes(4) == checkpoint_bytes(4, "whole")


def test_an_update_that_is_cut_short_leaves_what_it_began_with_and_what_acts(monkeypatch, capfd):
    large = (*DENSE, *LARGE, BESIDE, "runner.max_epochs=3")
    after: list[list[int]] = []

    def stop(trainer: Trainer, arrays: Any, results: Any, iteration: int, *_: Any) -> None:
        if iteration == 1:
            after.append(send_at(patch, Slow, "evaluate", 3))

    with monkeypatch.context() as patch:
        before(patch, Trainer, "update", stop)
        assert run(large) == 143
    assert after == [[]], "the update ended with the pass in progress"
    assert "stopped: 1 iteration done" in capfd.readouterr().out
    Path("hurry").touch()
    assert run(large) == run(large, name="whole") == 0
    assert lasting(rows()) == lasting(rows("whole"))
    assert checkpoint_bytes(3) == checkpoint_bytes(3, "whole")


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_update_that_fails_ends_the_rollout_beside_it_and_the_run(monkeypatch, capsys):
    monkeypatch.setattr(Trainer, "_update", lambda *_: 1 / 0)
    ended: list[BaseException] = []
    collect = Collector.collect

    def watched(*args: Any) -> Any:
        try:
            return collect(*args)
        except BaseException as error:
            ended.append(error)
            raise

    monkeypatch.setattr(Collector, "collect", watched)
    with pytest.raises(ZeroDivisionError):
        run(DENSE, BESIDE)
    assert [type(error) for error in ended] == [ZeroDivisionError]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("update")]


def test_a_worker_that_fails_beside_an_update_ends_both_with_its_traceback(monkeypatch, capsys):
    begun = []
    before(monkeypatch, Trainer, "update", lambda *_: begun.append(0))
    options = ("env.train._target_=broken_envs.FailsOnce", "env.train.marker=failed", "env.train.fault=exception")
    Path("failed").touch()

    def fail_in_the_second(collector: Collector, iteration: int, *_: Any) -> None:
        if iteration == 1:
            Path("failed").unlink()

    before(monkeypatch, Collector, "collect", fail_in_the_second)
    assert run(DENSE, BESIDE, *options, "env.max_worker_restarts=0") == 2
    assert begun == [0]
    assert "fix: " in capsys.readouterr().err
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("update")]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ((BESIDE, "env.enable_offload=true"), "set env.enable_offload=false"),
        ((BESIDE, "rollout.backend=vllm"), "rollout.backend=native"),
        ((BESIDE, "rollout.enforce_eager=false"), "set rollout.enforce_eager=true"),
        ((BESIDE, "rollout.recompute_logprobs=true"), "algorithm.loss_type=tis has both"),
        ((EVERY_SECOND, "rollout.recompute_logprobs=true"), "runner.weight_sync_interval is 2"),
        ((BESIDE, "model=openvla_oft_tiny", "actor.model.torch_compile=true"), "set actor.model.torch_compile=false"),
        ((BESIDE, "model=openvla_oft_tiny", "rollout.use_torch_compile=true"), "rollout.use_torch_compile=false"),
        (("algorithm.max_staleness=-1",), "algorithm.max_staleness"),
        (("runner.weight_sync_interval=0",), "runner.weight_sync_interval"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, text):
    with pytest.raises(ConfigError) as failed:
        compose(["env=fake", "model=fake", *overrides], "train", [str(HERE / "config")])
    assert text in str(failed.value)
