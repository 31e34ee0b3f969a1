"""A head that changes what a frozen policy does (models/head/around.py, residual.py)."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from biased_policy import Biased
from embodied.models.head import around_base

from embodied.errors import ConfigError, PolicyChangedError, SpecMismatchError, UnknownNameError
from embodied.protocols import ActorCritic, AnswersLater, Clonable, HasExtraState
from embodied.random import Stream
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.testing import FakeEnv, FakePolicy, check_policy
from embodied.types import ContinuousAction, Sampling

ENV = FakeEnv().spec
FAKE, FLOW = "embodied.testing.FakePolicy", "embodied.testing.FlowPolicy"
GREEDY = Sampling(do_sample=False)


def made(target=FAKE, scale=0.1, env=ENV, chunk=None, **own):
    policy = around_base(
        base={"url": None, "_target_": target, **own}, residual_scale=scale, num_action_chunks=chunk, hidden=16
    )
    policy.bind(env)
    return policy


def observed(policy, env=ENV, rows=5):
    random = torch.Generator().manual_seed(1)
    obs = {
        name: torch.randint(0, 256, (rows, *field.shape), dtype=torch.uint8, generator=random)
        if field.dtype == "uint8" else torch.randn(rows, *field.shape, generator=random)
        for name, field in env.obs.items()
    }  # fmt: skip
    return obs | dict(policy.encode_instructions([env.tasks[0]] * rows))


def of_base(policy, noise, env=ENV):
    drawn = policy.head.base_noise(noise[:, : policy.head.noise_size])
    return policy.base.act(observed(policy.base, env), drawn, GREEDY).fields["actions"]


@pytest.mark.parametrize(("target", "own"), [(FAKE, {}), (FLOW, {"one_step": True})], ids=["tokens", "flow"])
def test_it_begins_as_the_base_to_the_bit_and_keeps_the_contract(target, own):
    policy = made(target, **own)
    assert isinstance(policy, ActorCritic)
    assert isinstance(policy, HasExtraState)
    assert not isinstance(policy, AnswersLater | Clonable)
    noise = torch.randn(5, *policy.spec.noise.shape)
    decided = policy.act(observed(policy), noise, GREEDY).fields
    base = of_base(policy, noise)
    assert torch.equal(decided["actions"], base)
    assert torch.equal(decided["base"].unflatten(1, base.shape[1:]), base), "the fake env takes −1 … 1"
    drawn = policy.act(observed(policy), noise, Sampling()).fields["actions"]
    assert 0.05 < float((drawn - base).abs().max()) <= 0.1 + 1e-6
    check_policy(policy, ENV)


def test_dimensions_have_limits_of_their_own_and_the_gripper_may_be_left_out():
    env = replace(ENV, action=ContinuousAction((-1.0,) * 6 + (0.0,), (1.0,) * 5 + (3.0, 1.0)))
    policy = made(scale=[0.1, 0.2, 0.1, 0.1, 0.1, 0.5, 0], env=env)
    assert policy.spec.decision["chunk"].shape == (24,), "no number for the gripper"
    base = torch.zeros(1, 4, 7)
    base[0, :, 0] = torch.tensor([0.95, -1.5, 0.0, 0.0])
    own = policy.head.given(base)
    moved = policy.head.actions({}, torch.ones(1, 24), own)
    assert moved[0, :, 0].tolist() == pytest.approx([1.0, -1.0, 0.1, 0.1])
    assert moved[0, 0].tolist() == pytest.approx([1.0, 0.2, 0.1, 0.1, 0.1, 1.0, 0.0])
    assert torch.equal(policy.head.actions({}, torch.zeros(1, 24), own), base), "also what lies beyond the limits"
    assert own["base"][0, :7].tolist() == pytest.approx([0.95, 0, 0, 0, 0, -0.5, -1.0])
    back = policy.head.chunk(policy.head.actions({}, torch.full((1, 24), 0.5), own), own)
    assert back[0, 12:].tolist() == pytest.approx([0.5] * 12, abs=1e-5)


def test_fewer_actions_of_the_base_are_executed():
    policy = made(chunk=2)
    noise = torch.randn(5, *policy.spec.noise.shape)
    assert torch.equal(policy.act(observed(policy), noise, GREEDY).fields["actions"], of_base(policy, noise)[:, :2])
    with pytest.raises(SpecMismatchError, match="answers with 4 actions"):
        made(chunk=5)


def test_the_base_is_neither_trained_nor_copied():
    policy = made()
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert trained
    assert all(name.startswith(("actor.", "critic.")) or name == "log_temperature" for name in trained)
    copied = deepcopy(policy.train())
    assert copied.base is policy.base
    assert copied.actor is not policy.actor
    assert not policy.base.training
    with torch.no_grad():
        copied.actor.out.bias.fill_(1.0)
    assert not policy.actor.out.bias.any()


def test_another_base_is_refused():
    told = made().extra_state()
    made().load_extra_state(told)
    with pytest.raises(PolicyChangedError, match="trained on the base weights") as caught:
        made(seed=1).load_extra_state(told)
    assert "the same weights" in caught.value.remedy


def test_the_noise_of_a_base_is_drawn_also_where_nothing_is_decided():
    policy, requests = made(FLOW, one_step=True), [Request(-1, 0, 3, 7)]
    draw = Draw(Sampling(), 5, Stream.TRAIN_NOISE)
    assert (draw.noise_of_final(requests, policy.spec) == draw.noise_of(requests, policy.spec.noise)).all()
    assert not draw.noise_of_final(requests, FakePolicy().spec).any()


def test_uniform_noise_of_a_base_is_made_of_normal_numbers():
    class Drawing(Biased):
        def __init__(self):
            super().__init__()
            self.spec = replace(self.spec, noise=replace(self.spec.noise, shape=(4, 2), greedy=3))

    policy = around_base(base={"_target_": f"{FAKE}"})
    policy.head.base = Drawing()
    assert policy.head.noise_size == 6
    found = policy.head.base_noise(torch.linspace(-9, 9, 6)[None].repeat(2, 1))
    assert found.shape == (2, 4, 2)
    assert bool(((found >= 0) & (found < 1)).all())
    assert not found[:, 3].any()
    assert found[0, 1, 0] < 0.5 < found[0, 1, 1]


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        ({"base": {"url": None, "folder": None}}, ConfigError, "names no policy"),
        ({"base": {"url": "ws://a:1", "folder": "b"}}, ConfigError, "which name two policies"),
        ({"base": {"_target_": FAKE, "sed": 1}}, UnknownNameError, "base.sed"),
        ({"base": {"_target_": "embodied.learn.frozen.frozen_policy"}}, ConfigError, "base.folder is missing"),
        ({"base": {"_target_": FAKE}, "residual_scale": 0}, ConfigError, "expected a number above 0"),
        ({"base": {"_target_": FAKE}, "residual_scale": [0.1, "x"]}, ConfigError, "expected a number above 0"),
        ({"base": {"_target_": FAKE}, "head": "residul"}, UnknownNameError, "residual"),
    ],
)
def test_what_cannot_be_is_refused(keys, error, said):
    with pytest.raises(error, match=said):
        around_base(**keys)


def test_scales_that_do_not_fit_the_env_are_refused():
    with pytest.raises(SpecMismatchError, match="has 2 numbers, and the env takes actions of 7"):
        made(scale=[0.1, 0.1])
    unbounded = replace(ENV, action=ContinuousAction((-1.0,) * 6 + (float("-inf"),), (1.0,) * 6 + (float("inf"),)))
    with pytest.raises(SpecMismatchError, match=r"dimensions \[6\], for which the env has no bounds"):
        made(env=unbounded)
