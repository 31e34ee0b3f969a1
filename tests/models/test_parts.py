"""A policy and its parts have the same modules, in a copy too: else a copy would decode and save the original's."""

from __future__ import annotations

import copy

import pytest
import torch
from causal_lm_texts import answered
from causal_lm_texts import make as make_text
from safetensors.torch import load_file

from embodied.types import Sampling


def test_a_copy_of_the_robot_policy_reads_its_own_weights(make, observe) -> None:
    policy, obs = make(value_head=True), observe(2)
    other = copy.deepcopy(policy)
    for name in ("model", "value_head", "pixels"):
        assert getattr(other.parts, name) is getattr(other, name) is not getattr(policy, name)
    records = {**obs, **policy.act(obs, torch.zeros(2, 56), Sampling(do_sample=False)).fields}
    before = policy.evaluate(records, Sampling()).logprobs
    with torch.no_grad():
        other.model.language_model.lm_head.weight.mul_(2.0)
    assert torch.equal(policy.evaluate(records, Sampling()).logprobs, before)
    assert not torch.equal(other.evaluate(records, Sampling()).logprobs, before)
    other.parts.now.attention_open = True
    assert not policy.parts.now.attention_open


@pytest.mark.parametrize("keys", [{}, {"value_head": True, "value_type": "token_level"}])
def test_a_copy_of_a_language_model_reads_and_saves_its_own_weights(tmp_path, keys) -> None:
    policy = make_text(**keys)
    other = copy.deepcopy(policy)
    assert other.parts.trunk.network is other.network is other.parts.network is not policy.network
    assert other.parts.value_head is other.value_head
    with torch.no_grad():
        other.network.lm_head.weight.neg_()
    other.save(tmp_path / "other")
    saved = load_file(tmp_path / "other" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(saved, -policy.network.lm_head.weight)
    assert not torch.equal(answered(other)["tokens"], answered(policy)["tokens"])


def test_an_env_that_is_bound_later_is_that_of_a_decoding_made_before() -> None:
    """The rollout makes its decoding once, and binds the policy to an env for each collection."""
    policy = make_text()
    decoding = policy.decoding(2)
    policy.parts.now.max_bytes = 5
    told = policy.encode_instructions(["1+2="])
    decoding.admit([0], told, torch.rand(1, policy.settings.max_new_tokens))
    while not (whole := decoding.step()):
        pass
    assert decoding.take(whole).fields["actions"].shape == (1, 1, 5)
