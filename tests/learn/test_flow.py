"""A policy of continuous actions with a chain of denoising steps: the same runtime, learner and metrics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rig import CPU, open_rig

from embodied import train
from embodied.errors import ConfigError
from embodied.learn.trainer import Trainer
from embodied.observe.timing import Sections
from embodied.random import Stream
from embodied.runtime.plan import train_plan
from embodied.runtime.policy.policy_port import OnePass
from embodied.runtime.records import RecordStore
from embodied.runtime.rollout.rollout import Job, Rollout, Schedule
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakeEnv, FlowPolicy, check_policy
from embodied.types import Sampling

HERE = Path(__file__).parents[1]
HUGE = 1e9
RUN = (
    "env=fake", "model=fake", "actor.model._target_=embodied.testing.FlowPolicy", "tracker=jsonl", "runner.device=cpu",
    "runner.max_epochs=2", "runner.save_interval=1", "runner.val_check_interval=2", "algorithm.rollout_epoch=4",
    "env.train.max_episode_steps=10", "env.eval.max_episode_steps=6", "env.eval.video_cfg.save_video=false",
    "env.train.reward_mode=dense", "algorithm.entropy_type=chunk_level", "runner.experiment_name=run",
    "--config-dir", str(HERE / "config"),
)  # fmt: skip


@pytest.mark.parametrize("levels", [("action_level", "chunk_level"), ("token_level",), ()])
def test_it_keeps_the_contract(levels):
    check_policy(FlowPolicy(levels=levels), FakeEnv().spec)
    check_policy(FlowPolicy(steps=1), FakeEnv().spec)


@pytest.mark.parametrize("level", ["action_level", "chunk_level"])
def test_a_run_trains_at_every_level_that_it_declares(tmp_path, monkeypatch, level):
    monkeypatch.chdir(tmp_path)
    assert train.main([*RUN, f"algorithm.logprob_type={level}"]) == 0
    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        assert row["train/grad_norm"] > 0
        assert row["train/logprob_gap"] < 1e-4
        assert row["train/bad_updates"] == 0
        assert "train/entropy" not in row
        assert "rollout/action_bin_usage" not in row


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.logprob_type=token_level", "algorithm.logprob_type is token_level, and this policy's log-probs"),
        ("algorithm.entropy_bonus=0.1", "algorithm.entropy_bonus is 0.1, and the policy gives no entropies"),
        ("algorithm.kl_penalty_type=full", "algorithm.kl_penalty_type is full, and the policy gives no distribution"),
    ],
)
def test_what_it_cannot_give_is_refused_by_name(tmp_path, monkeypatch, capsys, override, message):
    monkeypatch.chdir(tmp_path)
    more = ("algorithm.logprob_type=chunk_level", "algorithm.kl_beta=0.1")
    assert train.main([*RUN, *more, override]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().glob("runs/run/logs/*")), "no worker was started"


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    with open_rig(
        tmp_path_factory.mktemp("flow"), slots=4, workers=1, success_distance=0.6, net=FlowPolicy()
    ) as rig:  # fmt: skip
        port = OnePass(rig.policy, rig.slab, rig.env.spec, CPU, 4)
        rollout = Rollout(rig.pool, port, RecordStore(rig.slab), 4, Schedule(True, 1), Sections())
        plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
        job = Job(Sampling(), 7, Stream.TRAIN_NOISE, 0, 10, keep_records=True, num_slots=4)
        results, _ = rollout.collect(plan, job)
        assert len({result.num_steps % 4 for result in results}) > 1, "some end inside a chunk"
        yield rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def trainer(env, level: str) -> Trainer:
    policy = FlowPolicy()
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=1000, micro_batch_size=3, optim=OptimConfig(lr=0.01, clip_grad=HUGE),
        model=ModelConfig(_target_="embodied.testing.FlowPolicy"),
    )  # fmt: skip
    algorithm = AlgorithmConfig(group_size=2, logprob_type=level, loss_agg_func="token-mean")
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=algorithm, sampling=Sampling(), device=CPU, seed=0, max_steps=10,
        max_bad_updates=3,
    )  # fmt: skip


@pytest.mark.parametrize("level", ["action_level", "chunk_level"])
def test_the_gradient_is_that_of_the_formula_written_out(collected, level):
    """−A · ∇ Σ log p over what was executed, as the ratio is 1 at the first update."""
    env, arrays, results = collected
    made, seen = trainer(env, level), {}
    step = made.optimizer.step
    made.optimizer.step = lambda: (seen.update({n: p.grad.clone() for n, p in made.policy.named_parameters()}), step())
    _, batch = made.update(arrays, results, iteration=0)

    policy = FlowPolicy()
    policy.bind(env)
    total, count = torch.zeros(()), 0
    for place, row in enumerate(batch.rows):
        record = {name: torch.from_numpy(array[row][None]) for name, array in arrays.items()}
        record |= policy.encode_instructions([env.tasks[arrays["task_id"][row]]])
        logprobs, steps = policy.evaluate(record, Sampling()).logprobs[0], int(arrays["num_steps"][row])
        total = total - float(batch.advantages[place]) * logprobs[:, :steps].sum()
        count += 1 if level == "chunk_level" else steps
    (total / count).backward()
    for name, parameter in policy.named_parameters():
        torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("distance", "left_out"), [(1e6, 0), (np.inf, 1), (np.nan, 1)])
def test_log_ratios_that_are_not_finite_change_nothing(collected, distance, left_out):
    """A density may be far from the recorded one. An update with what is infinite or NaN is left out and counted."""
    env, arrays, results = collected
    made = trainer(env, "chunk_level")
    before = {name: p.detach().clone() for name, p in made.policy.named_parameters()}
    spoilt = {**arrays, "logprobs": arrays["logprobs"] - np.float32(distance)}
    metrics, _ = made.update(spoilt, results, iteration=0)
    assert (metrics["train/bad_updates"], metrics["train/optimizer_steps"]) == (left_out, 1 - left_out)
    assert all(torch.equal(p, before[name]) for name, p in made.policy.named_parameters())


def test_what_was_not_executed_changes_nothing(collected):
    env, arrays, results = collected
    clean, dirty = trainer(env, "action_level"), trainer(env, "action_level")
    spoilt = {name: array.copy() for name, array in arrays.items()}
    rows = np.concatenate([result.rows for result in results])
    for row in rows:
        spoilt["logprobs"][row][:, int(arrays["num_steps"][row]) :] = np.nan
    before, _ = clean.update(arrays, results, iteration=0)
    after, _ = dirty.update(spoilt, results, iteration=0)
    assert before == after


def test_a_level_that_is_not_declared_is_refused_when_the_learner_is_made():
    with pytest.raises(ConfigError, match=r"counted by action_level or chunk_level(.|\n)*set algorithm.logprob_type"):
        trainer(FakeEnv().spec, "token_level")
