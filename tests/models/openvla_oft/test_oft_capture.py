"""What a CUDA graph needs of a policy call, checked without a GPU: after the first call nothing is copied from the host
and nothing is read back, both of which would wait for the device."""

from __future__ import annotations

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from embodied.types import Sampling

FROM_HOST, TO_HOST = "aten.lift_fresh.default", "aten._local_scalar_dense.default"


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.6), Sampling(top_k=20, top_p=0.9)])
@pytest.mark.parametrize(
    "keys",
    [
        {"use_proprio": True, "value_head": True, "center_crop": True, "policy_setup": "libero"},
        {"is_lora": True, "lora_rank": 4, "precision": "bf16", "policy_setup": "bridge"},
        {"use_film": True, "image_size": 32, "image_preset": "oft_libero", "center_crop": True},
        {"attention": "causal", "attn_implementation": "eager"},
    ],
)
def test_a_call_neither_copies_from_the_host_nor_waits(make, observe, noise, keys, sampling) -> None:
    policy = make(**keys)
    policy.act(observe(3), noise(3), sampling)
    obs, uniform = observe(3), noise(3)
    with Operators() as seen:
        policy.act(obs, uniform, sampling)
    assert not {FROM_HOST, TO_HOST} & seen.names


def test_a_cached_call_reads_nothing_back(make, observe, noise) -> None:
    """transformers' cache begins as an empty tensor, which is made on the host but has no bytes to copy."""
    policy = make(decoding="autoregressive", attention="causal", num_action_chunks=1)
    policy.act(observe(3), noise(3)[:, :7], Sampling())
    with Operators() as seen:
        policy.act(observe(3), noise(3)[:, :7], Sampling())
    assert TO_HOST not in seen.names
