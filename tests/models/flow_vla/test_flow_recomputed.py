"""Layers of a flow policy that are computed again in the backward pass, and copies of a policy."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.policy import FlowVLAPolicy
from test_flow_policy import SMALL, _recorded, noise_of, observed

from embodied.types import EnvSpec, Sampling


def bound(env: EnvSpec, layout: str, **keys: Any) -> FlowVLAPolicy:
    policy = build_policy(layout=layout, train_expert_only=False, **{**SMALL, **keys})
    policy.bind(env)
    return policy


@pytest.mark.parametrize("layout", ["smolvla", "pi0", "pi05"])
def test_recomputed_layers_have_the_same_gradients(made_up_env: EnvSpec, layout: str) -> None:
    plain, again = (bound(made_up_env, layout, gradient_checkpointing=on) for on in (False, True))
    records, calls = _recorded(plain, 2), 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    again.model.layers[1].expert.mlp.register_forward_pre_hook(count)
    for policy in (plain, again):
        policy.evaluate(records, Sampling()).logprobs.sum().backward()
    assert calls == 2
    gradients = [{n: p.grad for n, p in policy.named_parameters() if p.grad is not None} for policy in (plain, again)]
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_a_copy_has_weights_of_its_own(made_up_env: EnvSpec) -> None:
    policy = bound(made_up_env, "pi0", gradient_checkpointing=True)
    obs, noise = observed(policy, 2), noise_of(policy, 2)
    before = policy.act(obs, noise, Sampling()).fields["actions"]
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.5)
    assert torch.equal(other.act(obs, noise, Sampling()).fields["actions"], before)
    assert not torch.equal(policy.act(obs, noise, Sampling()).fields["actions"], before)
