"""Activations in host memory: the same gradients, and only activations go there."""

from __future__ import annotations

import pytest
import torch
from embodied.models.shared.offload import activations_on_host
from torch import nn

from embodied.types import Sampling

VARIANTS = [
    {},
    {"gradient_checkpointing": True},
    {"is_lora": True, "lora_rank": 4, "lora_init_weights": False, "precision": "bf16", "value_head": True},
    {"use_film": True, "attention": "causal", "gradient_checkpointing": True},
]


@pytest.mark.parametrize("keys", VARIANTS)
def test_the_gradients_are_equal(make, observe, noise, keys) -> None:
    obs = observe(3)
    plain, moved = make(**keys), make(**keys, activation_offload=True)
    records = {**obs, **plain.act(obs, noise(3), Sampling()).fields}
    for policy in (plain, moved):
        result = policy.train().evaluate(records, Sampling())
        (result.logprobs.sum() + (0 if result.value is None else result.value.sum())).backward()
    for (name, one), (_, two) in zip(plain.named_parameters(), moved.named_parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None), name
        assert one.grad is None or torch.equal(one.grad, two.grad), name


def test_weights_stay_and_activations_go() -> None:
    """Of a frozen layer and a trained one: the input of the second and both inputs of the product that follows, no
    weight. The originals may change afterwards: what the backward pass reads is a copy."""
    first, second = nn.Linear(256, 256).requires_grad_(False), nn.Linear(256, 256)
    x = torch.randn(64, 256)
    with activations_on_host(nn.ModuleList([first, second])) as moved:
        middle = first(x)
        out = second(middle)
        loss = (out * out).sum()
    expected = 2 * out.detach().T @ middle
    assert moved.bytes == moved.tensors * 64 * 256 * 4
    assert 2 <= moved.tensors <= 3
    with torch.no_grad():
        middle.zero_()
    loss.backward()
    torch.testing.assert_close(second.weight.grad, expected, atol=1e-3, rtol=1e-5)


def test_recomputed_layers_leave_their_inputs_alone(make, observe, noise) -> None:
    """Far less than without: a layer's input instead of everything in it, but not nothing."""
    sizes = {}
    for checkpointing in (False, True):
        policy, obs = make(gradient_checkpointing=checkpointing).train(), observe(2)
        records = {**obs, **policy.act(obs, noise(2), Sampling()).fields}
        with activations_on_host(policy) as moved:
            policy.evaluate(records, Sampling()).logprobs.sum().backward()
        sizes[checkpointing] = moved.bytes
    tokens, width, layers = policy.prompts.shape[1] + 64 + 56 + 1, 128, 3
    inputs = 2 * layers * tokens * width * 4
    assert inputs <= sizes[True] < 0.4 * sizes[False]


def test_acting_moves_nothing(make, observe, noise, monkeypatch) -> None:
    policy = make(activation_offload=True)
    monkeypatch.setattr("embodied.models.openvla_oft.parts.activations_on_host", None)
    policy.act(observe(2), noise(2), Sampling())
