"""A dry run counts the passes of critics, and the copies of what is remembered."""

from __future__ import annotations

import pytest
import torch
from embodied.models.head import HeadPolicy

from embodied.learn.actor_critic.memory import copied_bytes, entry_fields
from embodied.run.memory.replay_memory import run, total
from embodied.schema import ReplayConfig
from embodied.schema.compose.compose import compose
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

STATE = {"state": ArraySpec((3,), "float32")}
PICTURES = {"images": ArraySpec((1, 20, 20, 3), "uint8")}


def made(pictures=False):
    policy = HeadPolicy(num_action_chunks=2, hidden=8, pictures=pictures)
    env = EnvSpec(
        {**STATE, **(PICTURES if pictures else {})}, ("camera",) * pictures, ContinuousAction((-1.0,), (1.0,)),
        ("go",), (1,), 8, 10.0,
    )  # fmt: skip
    policy.bind(env)
    return policy, env


def test_a_pass_has_gradients_of_actor_critics_and_temperature():
    policy, _ = made()
    config = compose(["algorithm=sac", "env=fake"], "train", ["tests/config"]).config
    records = {"state": torch.zeros(4, 3), "chunk": torch.zeros(4, 2)}
    total(run(policy, records, config, Sampling())).backward()
    for name, parameter in policy.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_copies_are_of_small_fields_and_of_large_ones_where_all_are_few():
    policy, env = made(pictures=True)
    fields = entry_fields(policy, env, marked=True)
    small, one = 12 + 2 * 4 + 2 * 4 + 4 + 1 + 1, 20 * 20 * 3
    assert copied_bytes(fields, ReplayConfig(capacity=1000), 10**6) == 1000 * (small + one)
    assert copied_bytes(fields, ReplayConfig(capacity=1000), 30) == 30 * (small + one)
    assert copied_bytes(fields, ReplayConfig(capacity=10**8), 30) == 30 * (small + one)
    assert copied_bytes(fields, ReplayConfig(capacity=10**8), 10**7) == 10**7 * small
    assert copied_bytes(fields, ReplayConfig(max_gb=1e-4), 10**6) == pytest.approx(1e5, rel=0.1)
