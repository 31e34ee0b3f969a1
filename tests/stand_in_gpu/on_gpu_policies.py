"""``act``, ``evaluate`` and backward of both policies: on the device from end to end, and waiting for nothing."""

from __future__ import annotations

import copy

import embodied.models.openvla_oft.policy as oft
import pytest
import torch
from causal_lm_texts import ARCHITECTURES, TEXTS, N, answered, decoded, draws
from causal_lm_texts import make as make_text_policy
from device import TO_HOST, WAITS, WrongDevice
from embodied.models.causal_lm import build_policy as build_text_policy
from embodied.models.openvla_oft import build_policy
from robots import ENV, observe
from tiny_vision import SIZE, TEMPLATES, make_folder
from torch.nn.attention import SDPBackend, sdpa_kernel

from embodied.runtime.policy.capture import CapturedAct
from embodied.types import Sampling

DRAWN = (Sampling(temperature=1.6), Sampling(do_sample=False), Sampling(top_k=20, top_p=0.9))
OFT = {
    "plain": {"use_proprio": True, "value_head": True, "center_crop": True, "policy_setup": "libero"},
    "lora": {"is_lora": True, "lora_rank": 4, "policy_setup": "bridge", "gradient_checkpointing": True},
    "film": {"use_film": True, "image_size": 32, "image_preset": "oft_libero", "center_crop": True},
    "causal": {"attention": "causal", "attn_implementation": "eager", "activation_offload": True},
    "bf16": {"precision": "bf16", "is_lora": True, "lora_rank": 4, "value_head": True},
}


def robot_policy(**keys):
    policy = build_policy(**keys)
    policy.bind(ENV)
    return policy


def there(records):
    return {name: values.to("cuda") for name, values in records.items()}


def gradients(policy, result):
    policy.zero_grad()
    (result.logprobs.sum() + (0 if result.value is None else result.value.sum())).backward()
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("keys", OFT.values(), ids=OFT)
def test_openvla_oft(gpu, keys):
    torch.manual_seed(0)
    policy = robot_policy(**keys)
    moved, exact = copy.deepcopy(policy).to("cuda"), "precision" not in keys
    noise = torch.rand(3, 56, generator=torch.Generator().manual_seed(1))
    obs = there(observe(3))
    for number, sampling in enumerate(DRAWN):
        uniform = noise.to("cuda")
        if not number:
            moved.act(obs, uniform, sampling)  # makes the constants
        gpu.seen.clear()
        decision = moved.act(obs, uniform, sampling)
        assert not gpu.seen
        assert {values.device.type for values in decision.fields.values()} == {"cuda"}
        with sdpa_kernel(SDPBackend.MATH):
            wanted = policy.act(observe(3), noise, sampling)
        assert not exact or all(torch.equal(v.cpu(), wanted.fields[n]) for n, v in decision.fields.items())
    records = {**obs, **decision.fields}
    gpu.seen.clear()
    result = moved.evaluate(records, DRAWN[0], distribution=True)
    found = gradients(moved, result)
    offloads = "activation_offload" in keys
    assert offloads or not gpu.seen
    assert not offloads or {place.split()[0] for _, place in gpu.seen} == {"models/shared/offload.py"}
    assert {v.device.type for v in (result.logprobs, result.entropy, result.distribution, *found.values())} == {"cuda"}
    with sdpa_kernel(SDPBackend.MATH):
        expected = gradients(policy, policy.evaluate({**observe(3), **wanted.fields}, DRAWN[0]))
    assert found.keys() == expected.keys()
    assert not exact or all(torch.equal(found[name].cpu(), expected[name]) for name in expected)


def test_a_token_by_token_robot_policy_reads_nothing_back(gpu):
    policy = robot_policy(decoding="autoregressive", attention="causal", num_action_chunks=1).to("cuda")
    obs, uniform = there(observe(3)), torch.rand(3, 7).to("cuda")
    for sampling in DRAWN:
        gpu.seen.clear()
        assert policy.act(obs, uniform, sampling).fields["actions"].is_cuda
        assert not [place for kind, place in gpu.seen if kind in (TO_HOST, WAITS)]


@pytest.mark.parametrize("name", ["plain", "bf16"])
def test_a_captured_call(gpu, name):
    policy = robot_policy(**OFT[name]).to("cuda")
    captured, sampling = CapturedAct(policy), DRAWN[0]
    for seed in range(3):
        obs, noise = there(observe(3, seed)), torch.rand(3, 56).to("cuda")
        found = {name: values.clone() for name, values in captured(obs, noise, sampling).fields.items()}
        gpu.seen.clear()
        for field, values in policy.act(obs, noise, sampling).fields.items():
            assert torch.equal(found[field], values), field
    with pytest.raises(ValueError, match="captured for"):
        captured(obs, noise, DRAWN[1])


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_texts(gpu, kind):
    keys = {"value_head": True, "value_type": "token_level"}
    policy = make_text_policy(kind, **keys)
    moved = copy.deepcopy(policy).to("cuda")
    told, noise = there(moved.encode_instructions(TEXTS)), draws(len(TEXTS)).to("cuda")
    fields = moved.act(told, noise, Sampling()).fields
    assert {values.device.type for values in fields.values()} == {"cuda"}
    wanted = answered(policy)
    assert torch.equal(fields["tokens"].cpu(), wanted["tokens"])
    result = moved.evaluate({**told, **fields}, Sampling())
    gradients(moved, result)
    torch.testing.assert_close(result.logprobs.cpu(), policy.evaluate(wanted, Sampling()).logprobs, rtol=0, atol=1e-5)
    replayed, decoding = decoded(Graphs(moved), noise, Sampling(ignore_eos=True), 3, range(6), 2)
    eager, _ = decoded(policy, noise.cpu(), Sampling(ignore_eos=True), 3, range(6), 2)
    assert decoding._graphs.captures > 0
    assert torch.equal(replayed["tokens"].cpu(), eager["tokens"])
    torch.testing.assert_close(replayed["logprobs"].cpu(), eager["logprobs"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_texts_about_pictures(gpu, kind, tmp_path):
    policy = build_text_policy(model_path=str(make_folder(kind, tmp_path)), max_prompt_tokens=96, max_new_tokens=N)
    moved = copy.deepcopy(policy).to("cuda")
    pictures = torch.randint(0, 256, (3, 1, SIZE, SIZE, 3), generator=torch.Generator().manual_seed(0)).byte()
    texts = ["<image>which?", "<image>which?", "none"]
    here, noise = {**policy.encode_instructions(texts), "pictures": pictures}, draws(3)
    fields = moved.act(there(here), noise.to("cuda"), Sampling()).fields
    wanted = policy.act(here, noise, Sampling()).fields
    assert torch.equal(fields["tokens"].cpu(), wanted["tokens"])
    result = moved.evaluate({**there(here), **fields}, Sampling())
    assert all(grad.is_cuda for grad in gradients(moved, result).values())
    expected = policy.evaluate({**here, **wanted}, Sampling()).logprobs
    torch.testing.assert_close(result.logprobs.cpu(), expected, rtol=0, atol=1e-5)


class Graphs:
    """A policy whose decodings are replayed as graphs."""

    def __init__(self, policy):
        self._policy, self.encode_instructions = policy, policy.encode_instructions

    def decoding(self, lanes):
        return self._policy.decoding(lanes, False)


def test_a_tensor_on_the_cpu_and_a_number_that_is_read_are_noticed(gpu, monkeypatch):
    policy = robot_policy().to("cuda")
    obs, noise, draw = there(observe(2)), torch.rand(2, 56).to("cuda"), oft.drawing.draw
    monkeypatch.setattr(oft.drawing, "draw", lambda *given: draw(*given) + torch.zeros(56, dtype=torch.long))
    with pytest.raises(WrongDevice, match="on the cpu beside others on cuda"):
        policy.act(obs, noise, Sampling())
    monkeypatch.setattr(oft.drawing, "draw", lambda *given: draw(*given) * int(noise.max().item() >= 0))
    gpu.seen.clear()
    policy.act(obs, noise, Sampling())
    assert (WAITS, "models/openvla_oft/policy.py OpenVLAOFTPolicy.act.choose") in gpu.seen
    with pytest.raises(WrongDevice, match="in a graph: waits"):
        CapturedAct(policy)(obs, noise, Sampling())
