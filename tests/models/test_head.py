"""An actor with critics, ``model=head``."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from embodied.models.head import HeadPolicy, squashed
from embodied.models.head.network import Pictures

from embodied.errors import ConfigError, SpecMismatchError
from embodied.protocols import CHUNK, ActorCritic
from embodied.testing import FakeEnv, check_policy
from embodied.types import ArraySpec, ContinuousAction, DiscreteAction, Sampling

SPEC = FakeEnv(pictures=False).spec


def bound(spec=SPEC, **keys):
    policy = HeadPolicy(**{"num_action_chunks": 2, "hidden": 8, **keys})
    policy.bind(spec)
    return policy


def records(policy, spec=SPEC, count=5):
    found = {"state": torch.randn(count, *spec.obs["state"].shape)}
    found |= policy.encode_instructions(spec.tasks[:1] * count)
    return found, torch.rand(count, policy.head.chunk_size) * 2 - 1


@pytest.mark.parametrize("keys", [{}, {"critic_layer_norm": False, "critics": 3}, {"pictures": True}], ids=str)
def test_it_keeps_the_promises_of_a_policy(keys):
    policy = HeadPolicy(num_action_chunks=3, hidden=16, **keys)
    assert isinstance(policy, ActorCritic)
    check_policy(policy, FakeEnv(pictures="pictures" in keys).spec)


def test_it_refuses_what_it_cannot_do():
    with pytest.raises(SpecMismatchError, match="actions of several numbers"):
        HeadPolicy().bind(replace(SPEC, action=DiscreteAction(3)))
    with pytest.raises(SpecMismatchError, match="two finite bounds"):
        HeadPolicy().bind(replace(SPEC, action=ContinuousAction((-math.inf,), (1.0,))))
    with pytest.raises(SpecMismatchError, match=r"a state of 2 numbers|have 2"):
        HeadPolicy(state_low=[0, 0], state_high=[1, 1]).bind(FakeEnv(pictures=False, state_dim=3).spec)
    for keys, said in (({"critics": 0}, "critics is 0"), ({"head": "x"}, "no head"), ({"temperature": 0.0}, "above 0"),
                       ({"state_low": [1], "state_high": [0]}, "below")):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            HeadPolicy(**keys)


def test_log_densities_are_those_of_the_squashed_gaussian():
    mean, log_std = torch.tensor([0.3], dtype=torch.float64), torch.tensor([-0.4], dtype=torch.float64)
    grid = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    density = squashed.log_density(grid, mean, log_std).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-5)
    below = torch.trapezoid(density[grid <= 0.5], grid[grid <= 0.5]).item()  # P(tanh(u) ≤ 0.5) = Φ((atanh 0.5 − μ)/σ)
    exact = 0.5 * (1 + math.erf((math.atanh(0.5) - 0.3) / math.exp(-0.4) / math.sqrt(2)))
    assert below == pytest.approx(exact, abs=1e-4)
    drawn, logprobs = squashed.draw(mean, log_std, torch.randn(100, dtype=torch.float64))
    assert torch.allclose(logprobs, squashed.log_density(drawn, mean, log_std), atol=1e-6)


def test_a_chunk_is_the_actions_in_the_env_s_units():
    spec = replace(SPEC, action=ContinuousAction((-2.0, 0.0), (4.0, 1.0)))
    policy = bound(spec)
    actions = policy.head.actions({}, torch.tensor([[-1.0, 1.0, 0.0, 0.5]]), {})
    assert actions.tolist() == [[[-2.0, 1.0], [1.0, 0.75]]]
    assert policy.encode_actions(actions)[CHUNK].tolist() == [[-1.0, 1.0, 0.0, 0.5]]


def test_chunks_are_uniform_while_it_explores_and_greedy_ones_stay():
    policy = bound()
    obs, _ = records(policy, count=4000)
    noise = torch.randn(4000, policy.head.chunk_size)
    greedy = policy.act(obs, noise, Sampling(do_sample=False)).fields[CHUNK]
    policy.explore(True)
    chunk = policy.act(obs, noise, Sampling()).fields[CHUNK]
    assert chunk.abs().max() <= 1
    assert (chunk < -0.5).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert torch.equal(policy.act(obs, noise, Sampling(do_sample=False)).fields[CHUNK], greedy)


@pytest.mark.parametrize("keys", [{}, {"critic_layer_norm": False}], ids=str)
def test_critics_computed_together_are_those_computed_one_by_one(keys):
    policy = bound(critics=3, **keys)
    obs, chunks = records(policy)
    together = policy.judge(obs, chunks)
    ensemble = policy.critic.ensemble
    for number in range(3):
        hidden = torch.cat([policy._read(obs, policy.critic), chunks], -1)
        for weight, bias in zip(ensemble.weights[:-1], ensemble.biases[:-1], strict=True):
            hidden = hidden @ weight[number] + (0 if ensemble.layer_norm else bias[number])
            if ensemble.layer_norm:
                hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:]) + bias[number]
            hidden = hidden.relu()
        alone = (hidden @ ensemble.weights[-1][number] + ensemble.biases[-1][number])[:, 0]
        assert torch.allclose(together[number], alone, atol=1e-5)


def test_frozen_critics_get_no_gradient_and_the_actor_gets_one():
    policy = bound()
    obs, _ = records(policy)
    chunks, logprobs = policy.propose(obs, torch.randn(5, policy.head.chunk_size))
    (logprobs - policy.judge(obs, chunks, "frozen").mean(0)).sum().backward()
    assert all(p.grad is None for name, p in policy.named_parameters() if not name.startswith("actor."))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.actor.parameters())


def test_target_critics_follow_by_a_share_and_are_not_trained():
    policy = bound()
    obs, chunks = records(policy)
    assert torch.equal(policy.judge(obs, chunks, "target"), policy.judge(obs, chunks))
    before = {name: tensor.clone() for name, tensor in policy.targets().items()}
    with torch.no_grad():
        for p in policy.critic.parameters():
            p += 1
    policy.follow(0.25)
    for name, tensor in policy.targets().items():
        assert torch.allclose(tensor, before[name] + 0.25, atol=1e-6)
    assert not any(p.requires_grad for p in policy.target.parameters())


def test_a_state_is_scaled_by_its_bounds():
    count = SPEC.obs["state"].shape[0]
    policy = bound(state_low=[-2.0] * count, state_high=[6.0] * count)
    read = policy._read({**records(policy)[0], "state": torch.full((1, count), 6.0)} | {
        name: value[:1] for name, value in records(policy)[0].items() if name != "state"
    }, policy.critic)  # fmt: skip
    assert read[0, :count].tolist() == [1.0] * count


def test_pictures_are_averaged_before_they_are_read():
    small, whole = Pictures((2, 32, 64, 3), 8, side=16), Pictures((2, 32, 64, 3), 8)
    plain = torch.randint(40, 200, (3, 2, 32, 64, 3), dtype=torch.uint8)
    plain[:, :, :, 1::2] = plain[:, :, :, ::2]  # two pixels beside each other are equal
    striped = plain.clone()
    striped[:, :, :, ::2] += 20
    striped[:, :, :, 1::2] -= 20
    assert torch.allclose(small(plain), small(striped), atol=1e-5), "only averages of 2 × 4 pixels are seen"
    assert not torch.allclose(whole(plain), whole(striped), atol=1e-5)
    assert small.out.in_features == 32 * 4 * 4, "four pixels of a side are left"
    assert len(whole.body) == 8


@pytest.mark.parametrize("cameras", [1, 2])
@pytest.mark.parametrize("side", [16, None])
def test_prepared_pictures_are_judged_as_those_that_are_not(cameras, side):
    shape = (cameras, 64, 32, 3)
    spec = FakeEnv(pictures=True).spec
    policy = bound(
        replace(spec, obs={**spec.obs, "images": ArraySpec(shape, "uint8")}), pictures=True, picture_side=side
    )
    obs, chunks = records(policy, spec)
    obs["images"] = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    prepared, noise = policy.prepare(obs), torch.randn(5, policy.head.chunk_size)
    by_hand = obs["images"].permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255 - 0.5
    if side is not None:
        by_hand = torch.nn.functional.adaptive_avg_pool2d(by_hand, (side, side))
    assert torch.equal(prepared["images"], by_hand)
    assert prepared["images"].is_contiguous() == by_hand.is_contiguous(), "a convolution's last bits hang on it"
    for critics in ("learning", "target"):
        assert torch.equal(policy.judge(prepared, chunks, critics), policy.judge(obs, chunks, critics))
    assert torch.equal(policy.propose(prepared, noise)[0], policy.propose(obs, noise)[0])
