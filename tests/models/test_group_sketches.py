"""Sketches of groups' gradients in the networks that lay the records of a pass out in ways of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from causal_lm_texts import answered, make
from sketched import check_sketches

from embodied.learn.step.meters.noise.sketch import GradientSketch
from embodied.protocols import LaysOutRecords
from embodied.types import Sampling

TEXTS = ("1+2=", "12+34-5=", "7*(8-3)=?") * 4
"""Three prompts, each of one group: packed, the texts of a group share it."""


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("lora", [True, False])
def test_texts(packing: bool, lora: bool) -> None:
    policy = make(sequence_packing=packing, is_lora=lora, lora_rank=4, **({"lora_init_weights": False} if lora else {}))
    assert isinstance(policy, LaysOutRecords)
    layers = {name for name in GradientSketch(policy, 0).layers if name != "network.lm_head"}
    assert len(layers) > 10
    check_sketches(policy, answered(policy, TEXTS), layers)


def test_pictures(make_policy: Any, make_observations: Any) -> None:
    policy = make_policy(size="tiny", is_lora=True, lora_rank=4, lora_init_weights=False, num_images_in_input=2)
    obs = make_observations(7)
    noise = torch.rand(7, *policy.spec.noise.shape, generator=torch.Generator().manual_seed(0))
    records = {**obs, **policy.act(obs, noise, Sampling()).fields}
    layers = {name for name in GradientSketch(policy, 0).layers if "lm_head" not in name}
    check_sketches(policy, records, layers)
