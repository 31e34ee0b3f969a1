"""Whole runs with ``env.train.reward_mode=own_successes``: the same bits whoever runs an episode and wherever a run is
resumed, what is said, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from logged import rows_of
from seeded_runs import tensors
from test_run_ranks import finished, started

from embodied import train
from embodied.errors import ConfigError
from embodied.learn.score import own_successes
from embodied.parallel.group import Group
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
MODE = "env.train.reward_mode=own_successes"
FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=3", "runner.save_interval=1",
    "runner.val_check_interval=3", "algorithm=ppo", "algorithm.group_size=2", "env.train.total_num_envs=4",
    "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10", "env.train.success_distance=0.6", MODE,
    "env.eval.total_num_envs=2", "env.eval.max_episode_steps=6", "env.eval.video_cfg.save_video=false",
    "reward.own_successes.per_task=2",
)  # fmt: skip
ONE, TWO = "env.num_workers=1", "env.num_workers=2"
MEMORY = "trainer/own_successes/"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str, *overrides: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics that last, and all tensors of the last checkpoint."""
    assert train.main([*FAST, f"runner.experiment_name={name}", *overrides, "--config-dir", CONFIG]) == 0
    return outcome(name)


def outcome(name: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    rows = [{**row, "rollout/worker_restarts": 0} for row in rows_of(Path("runs", name))]
    return rows, tensors(Path("runs", name))


def same(one, other) -> bool:
    (rows, state), (rows_2, state_2) = one, other
    differ = [name for name in state if not torch.equal(state[name], state_2[name])]
    assert not differ, differ
    assert rows == rows_2
    return state.keys() == state_2.keys()


KINDS = {
    "lost": (TWO, "env.train._target_=broken_envs.FailsOnce", "env.train.marker=failed", "env.train.fault=kill"),
    "batch": (ONE, *(f"env.{side}._target_=embodied.testing.FakeBatchEnv" for side in ("train", "eval"))),
    "hosts": (TWO, "cluster.simulator_hosts=2"),
}  # fmt: skip


def test_it_is_the_same_run_whoever_runs_an_episode_and_wherever_it_goes_on(capsys):
    whole = run("whole", ONE)
    rows, state = whole
    assert [row["train/tasks_without_success"] for row in rows][-1] < 2, "something was remembered"
    assert rows[-1]["train/failure_potential_mean"] > 0
    assert state[f"{MEMORY}features"].abs().sum() > 0
    assert state[f"{MEMORY}features"].shape == (2, 2, 4, 4)
    assert capsys.readouterr().out.count("a task without a success has the sparse reward alone") == 1
    for kind, options in KINDS.items():
        assert same(run(kind, *options), whole), kind
    run("stopped", TWO, "runner.max_epochs=2", "runner.val_check_interval=-1")
    assert same(run("stopped", ONE), whole)


def test_with_older_weights_it_is_one_run_too(capsys):
    older = "algorithm.max_staleness=2", "env.start_method=forkserver"
    whole = run("whole", ONE, *older)
    assert whole[1][f"{MEMORY}seen"].sum() > 0
    run("stopped", TWO, *older, "runner.max_epochs=1", "runner.val_check_interval=-1")
    assert same(run("stopped", TWO, *older), whole)


@pytest.mark.slow
def test_the_process_that_trains_remembers_what_others_collect():
    whole = run("whole", ONE)
    apart = ("runner.experiment_name=apart", "cluster.component_placement={actor: 0, rollout: 1}", ONE)
    with started(*FAST, *apart, name="apart", forks=True) as process:
        assert finished(process) == 0
    rows, state = outcome("apart")
    rows = [{k: v for k, v in row.items() if k != "rollout/weight_sync_bytes"} for row in rows]
    assert same((rows, state), whole)


def test_two_ranks_remember_what_one_does():
    """Gradients of two ranks round otherwise, so the first iterations' successes are compared, which came before."""
    (_, state), once = run("one", ONE, "runner.max_epochs=1", "runner.val_check_interval=-1"), (
        "runner.max_epochs=1", "runner.val_check_interval=-1", "actor.fsdp_config.strategy=replicate", ONE,
    )  # fmt: skip
    with started(*FAST, *once, "runner.experiment_name=two", name="two", forks=True) as process:
        assert finished(process) == 0
    found = outcome("two")[1]
    assert state[f"{MEMORY}seen"].sum() > 0
    assert all(torch.equal(found[name], state[name]) for name in state if name.startswith(MEMORY))


def test_only_what_it_pays_tells_it_from_sparse_and_evaluations_never_ask(monkeypatch):
    """With potentials of 0 it is the sparse run, bit by bit; with its own it is so until there are some."""
    sparse, before = run("sparse", ONE, "env.train.reward_mode=sparse")
    own = run("own", ONE)[0]
    assert own[0]["train/value_loss"] == sparse[0]["train/value_loss"]
    assert own[-1]["train/value_loss"] != sparse[-1]["train/value_loss"]
    monkeypatch.setattr(own_successes, "shaping", lambda potentials, counts, gamma: 0.0 * counts)
    rows, state = run("none", ONE)
    assert all(torch.equal(state[name], value) for name, value in before.items())
    assert [{name: row[name] for name in other} for row, other in zip(rows, sparse, strict=True)] == sparse


@pytest.mark.parametrize(
    ("options", "message", "fix"),
    [
        (("algorithm=grpo",), "algorithm.adv_type grpo reads nothing but such sums", "set algorithm=ppo"),
        (("algorithm.adv_type=reinforce_plus_plus_baseline",), "cancels out in the sum", "set algorithm=ppo"),
        (("algorithm.filter_rewards=true",), "leaves out groups by returns", "set algorithm.filter_rewards=false"),
        (("algorithm.dynamic_sampling=true",), "does not compare the episodes", "set algorithm.dynamic_sampling=false"),
        (("env.train.reward_coef=0",), "env.train.reward_coef is 0", "set env.train.reward_coef=1.0"),
        (("env.train.reward_coef=-2",), "env.train.reward_coef is -2", "set env.train.reward_coef=1.0"),
        (("env.eval.reward_mode=own_successes",), "env.eval.reward_mode", "'sparse' or 'dense'"),
        (("reward.own_successes.per_task=0",), "reward.own_successes.per_task", "1"),
        (
            ("env.train._target_=plain_envs.WithoutFeatures",),
            "plain_envs.WithoutFeatures offers no progress_features",
            r"give it num_progress_features and progress_features\(self\)",
        ),
    ],
)
def test_what_could_not_work_is_refused(options, message, fix):
    with pytest.raises(ConfigError, match=message) as refused:
        check(compose([*FAST, *options], "train", [CONFIG]), Group())
    with pytest.raises(ConfigError, match=fix):
        raise ConfigError(f"{refused.value.message} {refused.value.remedy}", "")


def test_an_estimator_of_rewards_to_go_is_paid_too():
    """The success of the first iteration is paid for in the second."""
    plus = (
        ONE, "algorithm=reinforce_pp", "algorithm.reward_type=chunk_level", "algorithm.use_kl_in_reward=false",
        "algorithm.kl_beta=0", "runner.max_epochs=2", "runner.val_check_interval=-1",
    )  # fmt: skip
    (sparse, before), (own, after) = run("sparse", *plus, "env.train.reward_mode=sparse"), run("own", *plus)
    assert own[0]["train/loss"] == sparse[0]["train/loss"]
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_features_that_are_not_finite_end_the_run_with_their_place(capsys):
    options = ("env.train._target_=plain_envs.NotFinite", ONE, "runner.experiment_name=odd", "--config-dir", CONFIG)
    assert train.main([*FAST, *options]) == 2
    error = capsys.readouterr().err
    assert "number 2 of progress_features is nan at control step" in error
    assert "correct the env's progress_features" in error
