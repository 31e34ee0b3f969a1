"""The formula for FLOPs against torch's counter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.flow_vla import build_policy
from test_flow_policy import SMALL, noise_of, observed
from torch.utils.flop_counter import FlopCounterMode

from embodied.protocols import CountsFlops
from embodied.types import EnvSpec, Sampling


def attention(query: Any, key: Any, *rest: Any, out_shape: Any = None, **keys: Any) -> int:
    batch, heads, tokens, width = query
    return 4 * batch * heads * tokens * key[2] * width


def attention_backward(grad: Any, query: Any, key: Any, *rest: Any, out_shape: Any = None, **keys: Any) -> int:
    """Without the products that the kernel makes a second time."""
    return 2 * attention(query, key)


ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
}
"""The counter knows the GPU's attention kernels only."""


@pytest.mark.parametrize(
    ("layout", "keys", "most"),
    [
        ("smolvla", {"noise_steps": "all"}, 0.03),
        ("smolvla", {"train_expert_only": False}, 0.03),
        ("pi0", {"noise_steps": "all", "value_head": True}, 0.03),
        ("pi0", {"is_lora": True, "lora_rank": 1}, 0.06),
        ("pi05", {"train_expert_only": False}, 0.03),
    ],
)
def test_records_cost_what_is_counted(made_up_env: EnvSpec, layout: str, keys: dict[str, Any], most: float) -> None:
    policy = build_policy(layout=layout, **{**SMALL, "hidden_size": 64, "expert_hidden_size": 48, **keys})
    policy.bind(made_up_env)
    assert isinstance(policy, CountsFlops)
    records = {**observed(policy, 3), **policy.act(observed(policy, 3), noise_of(policy, 3), Sampling()).fields}
    light = {name: values.numpy() for name, values in records.items() if name not in ("images", "state")}
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as forward, torch.no_grad():
        policy.evaluate(records, Sampling())
    left_out = "value_head" in keys or "is_lora" in keys  # the head and adapters
    share = policy.flops(light, training=False).sum() / forward.get_total_flops()
    assert share == pytest.approx(1, abs=most if left_out else 0)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as both:
        policy.evaluate(records, Sampling()).logprobs.sum().backward()
    found = policy.flops(light, training=True)
    assert found.shape == (3,)
    assert found.dtype == np.float64
    assert found.sum() / both.get_total_flops() == pytest.approx(1, abs=most)
