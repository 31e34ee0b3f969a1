"""The scale of the loss for fp16, alone and in the trainer on records of the fake env."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from broken_policies import Narrow, NotFinite
from rig import CPU

from embodied import train
from embodied.learn.step.loss_scale import LARGEST, LossScale
from embodied.learn.trainer import Trainer
from embodied.schema import ActorConfig, AlgorithmConfig, GradScalerConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy
from embodied.types import Sampling


def trainer(env, policy=None, update_epoch=1, max_bad_updates=3, **scaler) -> Trainer:
    policy = policy or FakePolicy()
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=1000, micro_batch_size=16, optim=OptimConfig(lr=1e-3), model=model(),
        grad_scaler=GradScalerConfig(**scaler),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(group_size=2, update_epoch=update_epoch),
        sampling=Sampling(), device=CPU, seed=0, max_steps=10, max_bad_updates=max_bad_updates,
    )  # fmt: skip


def model(**keys) -> ModelConfig:
    return ModelConfig(_target_="embodied.testing.FakePolicy", **keys)


def flat(policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for _, p in policy.named_parameters()])


@pytest.mark.parametrize(
    ("precision", "enabled", "expected"),
    [(None, None, False), ("bf16", None, False), ("fp16", None, True), ("fp16", False, False), ("fp32", True, True)],
)
def test_it_is_for_fp16_unless_told_otherwise(precision, enabled, expected) -> None:
    keys = {} if precision is None else {"precision": precision}
    scale = LossScale.of(ActorConfig(model=model(**keys), grad_scaler=GradScalerConfig(enabled=enabled)))
    assert scale.enabled == expected
    assert scale.value == (65536.0 if expected else 1.0)


def test_the_rule() -> None:
    """Halved at once, doubled after so many good updates in a row; below 1 the fault lies elsewhere."""
    scale = LossScale(8.0, growth_interval=2)
    scale.updated()
    assert scale.overflowed(loss=1.0, norm=math.inf)
    assert (scale.value, scale.good) == (4.0, 0)
    scale.updated()
    assert scale.value == 4.0
    scale.updated()
    assert (scale.value, scale.good) == (8.0, 0)
    assert not scale.overflowed(loss=math.nan, norm=math.nan), "the forward pass has no scale"
    assert not scale.overflowed(loss=1.0, norm=2.0)
    for expected in (4.0, 2.0, 1.0):
        assert scale.overflowed(1.0, math.nan)
        assert scale.value == expected
    assert not scale.overflowed(1.0, math.nan)
    top = LossScale(LARGEST, growth_interval=1)
    top.updated()
    assert top.value == LARGEST


def test_its_state_goes_there_and_back() -> None:
    scale = LossScale(8.0, growth_interval=5, good=3)
    again = LossScale(65536.0, growth_interval=5)
    again.load_state_dict(scale.state_dict())
    assert again == scale


def test_a_power_of_two_changes_no_bit_in_float32(collected) -> None:
    env, arrays, results = collected
    plain, scaled = trainer(env), trainer(env, enabled=True)
    for made in (plain, scaled):
        made.update(arrays, results, iteration=0)
    assert torch.equal(flat(plain.policy), flat(scaled.policy))


def test_an_overflow_lowers_the_scale_and_is_no_bad_update(collected) -> None:
    env, arrays, results = collected
    made = trainer(env, Narrow(), update_epoch=24, max_bad_updates=1, enabled=True, init_scale=2.0**24)
    metrics, _ = made.update(arrays, results, iteration=0)
    overflows = metrics["train/overflows"]
    assert 1 <= overflows < 24
    assert metrics["train/optimizer_steps"] == 24 - overflows == made.weight_version
    assert metrics["train/bad_updates"] == made.engine.finite.bad_in_a_row == 0
    assert metrics["train/loss_scale"] == 2.0 ** (24 - overflows)
    assert flat(made.policy).isfinite().all()
    plain = trainer(env, update_epoch=24 - int(overflows))
    plain.update(arrays, results, iteration=0)
    moved = flat(plain.policy) - flat(FakePolicy())
    assert (flat(made.policy) - flat(plain.policy)).norm() < 0.05 * moved.norm()


def test_the_scale_is_part_of_the_state_of_training(collected) -> None:
    env, arrays, results = collected
    made, again, plain = trainer(env, enabled=True, growth_interval=1), trainer(env, enabled=True), trainer(env)
    made.update(arrays, results, iteration=0)
    again.load_state_dict(made.state_dict())
    assert again.engine.loss_scale.state_dict() == made.engine.loss_scale.state_dict() == {"value": 2.0**17, "good": 0}
    assert "loss_scale" not in plain.state_dict()


def test_a_loss_that_is_not_finite_is_a_bad_update_all_the_same(collected) -> None:
    env, arrays, results = collected
    made = trainer(env, NotFinite(), enabled=True)
    metrics, _ = made.update(arrays, results, iteration=0)
    assert (metrics["train/bad_updates"], metrics["train/overflows"], metrics["train/loss_scale"]) == (1, 0, 65536.0)


def test_a_run_in_fp16(tmp_path, monkeypatch) -> None:
    """The small OpenVLA-OFT on fake pictures: real fp16 arithmetic, also on a CPU."""
    monkeypatch.chdir(tmp_path)
    run = (
        "env=fake", "model=openvla_oft_tiny", "tracker=jsonl", "runner.device=cpu", "runner.experiment_name=run",
        "runner.seed=1",
        "runner.max_epochs=1", "runner.val_check_interval=-1", "runner.save_interval=-1", "env.train.total_num_envs=2",
        "env.train.max_episode_steps=8", "env.train.reward_mode=dense", "algorithm.group_size=2",
        "algorithm.rollout_epoch=1", "actor.model.precision=fp16", "actor.model.use_proprio=false",
        "env.eval.video_cfg.save_video=false",
    )  # fmt: skip
    assert train.main([*run, "--config-dir", str(Path(__file__).parents[1] / "config")]) == 0
    (row,) = map(json.loads, (tmp_path / "runs" / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["train/optimizer_steps"] + row["train/overflows"] == 1
    assert row["train/bad_updates"] == 0
