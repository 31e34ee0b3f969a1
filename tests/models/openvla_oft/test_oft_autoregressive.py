"""OpenVLA before OFT: one token after the other on the same network."""

from __future__ import annotations

import pytest
import torch
from embodied.models.openvla_oft import Settings
from embodied.models.openvla_oft.network.config import OPENVLA_7B
from embodied.models.openvla_oft.network.flops import sequence_length
from embodied.models.openvla_oft.probe import read

from embodied.testing import check_policy
from embodied.types import Sampling

V1 = {"decoding": "autoregressive", "attention": "causal", "num_action_chunks": 1}


@pytest.fixture
def uniform():
    return torch.rand(4, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"attention": "auto", "use_proprio": True, "value_head": True},
        {"attn_implementation": "eager"},
        {"is_lora": True, "lora_rank": 4, "lora_init_weights": False, "gradient_checkpointing": True},
    ],
)
def test_it_satisfies_the_protocol(make, env, keys) -> None:
    policy = make(**{**V1, **keys})
    check_policy(policy, env)
    assert policy.spec.decision["action_tokens"].shape == (7,)
    assert policy.model.net.attention == "causal"


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1.6, top_k=20, top_p=0.9), Sampling(do_sample=False)]
)
@pytest.mark.parametrize("keys", [{}, {"attn_implementation": "eager"}])
def test_cached_decoding_and_teacher_forcing_agree(make, observe, uniform, sampling, keys) -> None:
    """The log-probs of act, one token at a time with cached keys, against one pass over the whole sequence; three
    instructions of different length, so padding takes part."""
    policy, obs = make(**V1, **keys, value_head=True), observe(4)
    assert policy.padded
    fields = policy.act(obs, uniform, sampling).fields
    result = policy.evaluate({**obs, **fields}, sampling)
    assert (result.logprobs - fields["logprobs"]).abs().max() <= 1e-5
    assert (result.value - fields["value"]).abs().max() <= 1e-5


def test_the_value_is_that_of_the_observation_whatever_is_drawn(make, observe, uniform) -> None:
    policy, obs = make(**V1, value_head=True), observe(4)
    one, two = (policy.act(obs, noise, Sampling()).fields for noise in (uniform, 1 - uniform))
    assert not torch.equal(one["action_tokens"], two["action_tokens"])
    torch.testing.assert_close(one["value"], two["value"], atol=1e-6, rtol=0)


def test_a_probe_reads_what_the_likeliest_tokens_give(make, observe) -> None:
    policy, obs = make(**V1), observe(4)
    reading = read(policy.parts, policy.inputs(obs))
    tokens = policy.act(obs, torch.zeros(4, 7), Sampling(do_sample=False)).fields["action_tokens"]
    assert reading.entropy == pytest.approx(read(policy.parts, policy.inputs(obs), tokens).entropy, abs=1e-4)
    assert 0 < reading.inside < 1


def test_without_padding_too(make, observe, uniform) -> None:
    policy, obs = make(tasks=("lift the cube",), **V1), observe(4)
    obs = {**obs, "prompt": torch.zeros(4, dtype=torch.int32)}
    assert not policy.padded
    fields = policy.act(obs, uniform, Sampling()).fields
    assert (policy.evaluate({**obs, **fields}, Sampling()).logprobs - fields["logprobs"]).abs().max() <= 1e-5


def test_a_token_depends_on_those_before_it_only(make, observe, uniform) -> None:
    policy, obs = make(**V1), observe(4)
    tokens = policy.act(obs, uniform, Sampling()).fields["action_tokens"]
    changed = tokens.clone()
    changed[:, 3] = 768 + (tokens[:, 3] - 768 + 100) % 256
    one, two = (policy.parts.read_out(policy.inputs(obs), t.long()).logits for t in (tokens, changed))
    assert torch.equal(one[:, :4], two[:, :4])
    assert (one[:, 4] - two[:, 4]).abs().max() > 1e-3


def test_greedy_is_the_argmax_at_each_step(make, observe, uniform) -> None:
    policy, obs = make(**V1), observe(4)
    tokens = policy.act(obs, uniform, Sampling(do_sample=False)).fields["action_tokens"].long()
    logits = policy.parts.read_out(policy.inputs(obs), tokens).logits
    assert torch.equal(logits.argmax(-1) + 768, tokens)


def test_unnormalisation_has_no_epsilon(make) -> None:
    """v1: 0.5·(x + 1)·(q99 − q01) + q01 exactly; OFT adds 1e-8 to the width."""
    statistics = {"action": {"q01": [0.0] * 7, "q99": [0.0] * 7, "mask": [True] * 7}}
    for keys, want in ((V1, 0.0), ({"num_action_chunks": 1}, 0.5 * (2 - 1 / 255) * 1e-8)):
        policy = make(**keys)
        policy.use_statistics("constant", statistics)
        assert policy.decode_actions(torch.full((1, 7), 769))[0, 0, 0].item() == pytest.approx(want, rel=1e-6)


def test_a_folder_gives_the_same_policy(make, observe, uniform, tmp_path) -> None:
    policy = make(**V1)
    policy.save(tmp_path / "hf")
    again = make(**V1, model_path=str(tmp_path / "hf"), size=None)
    one, two = (p.act(observe(4), uniform, Sampling()).fields for p in (policy, again))
    assert torch.equal(one["action_tokens"], two["action_tokens"])
    torch.testing.assert_close(one["logprobs"], two["logprobs"], atol=1e-5, rtol=0)


def test_the_7b_needs_no_stop_token_and_six_action_tokens() -> None:
    net = Settings.from_kwargs({**V1, "size": "7b"}).net_config()
    assert not net.stop_token
    assert sequence_length(net, 31) == 31 + 256 + 6
    assert (net.hidden_size, net.vocab_size) == (OPENVLA_7B.hidden_size, 32000)
