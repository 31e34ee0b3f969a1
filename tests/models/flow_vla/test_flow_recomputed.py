"""Layers of a flow policy that are computed again in the backward pass, copies of a policy, derivatives in a server."""

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


def test_guidance_with_the_networks_derivative_works_where_a_server_acts(made_up_env: EnvSpec) -> None:
    policies = [bound(made_up_env, "smolvla", rtc_jacobian=on, num_steps=3) for on in (False, True)]
    obs, noise, rest = observed(policies[0], 2), noise_of(policies[0], 2), torch.full((2, 4, 7), 0.5)
    found = []
    for policy in policies:
        with torch.inference_mode():
            inside = {name: values.clone() for name, values in obs.items()}, noise.clone(), Sampling(do_sample=False)
            left, delay = torch.tensor([4, 3]), torch.tensor([2, 1])
            found.append(policy.act_after(*inside, rest.clone(), left, delay).fields["actions"])
    assert found[0].isfinite().all()
    assert not torch.equal(*found)


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
