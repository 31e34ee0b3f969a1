"""The formula for FLOPs against torch's counter and the reference's numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from embodied.models.openvla_oft.network.config import OPENVLA_7B
from embodied.models.openvla_oft.network.flops import forward_flops, sequence_length, training_flops
from torch.utils.flop_counter import FlopCounterMode

from embodied.protocols import CountsFlops
from embodied.types import Sampling


def attention_flops(query, key, *rest, out_shape=None, **kwargs) -> int:
    batch, heads, tokens, width = query
    return 4 * batch * heads * tokens * key[2] * width


# The counter knows the GPU's attention kernels only.
CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}


def counted(call) -> int:
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("keys", [{}, {"use_proprio": True, "num_images_in_input": 2, "stop_token": False}])
def test_forward_is_exact(make, observe, noise, keys) -> None:
    policy = make(**keys)
    prompt = policy.prompts.shape[1]
    got = counted(lambda: policy.act(observe(3), noise(3), Sampling()))
    assert got == 3 * forward_flops(policy.model.net, prompt).total


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_in_full(make, observe, noise, checkpointing) -> None:
    """A little less than whole passes: pixels need no gradient, projector and head are not recomputed."""
    policy = make(attn_implementation="eager", gradient_checkpointing=checkpointing).train()
    records = {**observe(2), **policy.act(observe(2), noise(2), Sampling()).fields}
    got = counted(lambda: policy.evaluate(records, Sampling()).logprobs.sum().backward())
    formula = training_flops(policy.model.net, policy.prompts.shape[1], lora=False, checkpointing=checkpointing)
    assert 0.9 <= got / (2 * formula) <= 1.0


def test_the_7b_has_the_published_count() -> None:
    """4.92 and 8.78 TFLOP in the reference; its sequences of 344 and 601 tokens."""
    both = replace(OPENVLA_7B, num_images=2, proprio_dim=8)
    assert sequence_length(OPENVLA_7B, 31) == 344
    assert sequence_length(both, 31) == 601
    assert forward_flops(OPENVLA_7B, 31).total / 1e12 == pytest.approx(4.92, rel=0.005)
    assert forward_flops(both, 31).total / 1e12 == pytest.approx(8.78, rel=0.005)
    assert training_flops(OPENVLA_7B, 31, lora=True, checkpointing=True) == 3 * forward_flops(OPENVLA_7B, 31).total


@pytest.mark.parametrize("lora", [False, True])
def test_the_policy_says_what_its_records_cost(make, lora) -> None:
    """Recomputed layers are no part of it: they are a way to save memory, not work that a record needs."""
    policy = make(is_lora=lora, gradient_checkpointing=True)
    forward = forward_flops(policy.model.net, policy.prompts.shape[1]).total
    assert isinstance(policy, CountsFlops)
    assert policy.flops({"actions": np.zeros(3)}, training=False).tolist() == [forward] * 3
    assert policy.flops({"actions": np.zeros(2)}, training=True).tolist() == [(2 if lora else 3) * forward] * 2
