"""A checkpoint of format 2 that an earlier version wrote: it is read, resumed, and says what it does not hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from embodied.errors import CheckpointError
from embodied.learn.checkpoint.loading import load, resume
from embodied.learn.origin import restore
from embodied.learn.trainer import Trainer
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig
from embodied.testing import FakeEnv, FakePolicy
from embodied.types import Sampling

WRITTEN = Path(__file__).parent / "format2"  # by the version before records said what they hold
SHAPE = {"action_dim": 2, "state_dim": 2, "bins": 3, "num_tasks": 2, "num_action_chunks": 2}


def trainer() -> Trainer:
    policy, env = FakePolicy(**SHAPE), FakeEnv(action_dim=2, state_dim=2).spec
    policy.bind(env)
    actor = ActorConfig(model=ModelConfig(_target_="embodied.testing.FakePolicy"))
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=AlgorithmConfig(group_size=4), sampling=Sampling(),
        device=torch.device("cpu"), seed=1, max_steps=4, max_bad_updates=3,
    )  # fmt: skip


def test_its_weights_are_read():
    policy = FakePolicy(**SHAPE)
    before = policy.head.weight.detach().clone()
    meta = load(WRITTEN, policy)
    assert (meta.format, meta.iteration, meta.origin) == (2, 1, {})
    assert not torch.equal(policy.head.weight, before)


def test_a_run_goes_on_from_it():
    made = trainer()
    assert resume(WRITTEN, made).iteration == 1
    assert made.weight_version == 1
    assert made.optimizer.state[made.policy.head.weight]["step"] == 1


def test_it_does_not_say_what_builds_its_policy():
    with pytest.raises(CheckpointError, match=r"does not say what builds its policy(.|\n)*runner.ckpt_path"):
        restore(WRITTEN)
