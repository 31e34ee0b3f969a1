"""What an inference engine gets of a causal language model, and gives back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from causal_lm_texts import TEXTS, N, answered, make
from embodied.models.shared.files import read_safetensors
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from embodied.errors import ConfigError
from embodied.protocols import EngineText, ServedByEngine
from embodied.run.build.engine import check_policy, max_gap
from embodied.run.build.policy import Model
from embodied.schema import RolloutConfig
from embodied.testing import FlowPolicy
from embodied.types import Sampling

LORA = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}  # random adapters: merging them changes something


def texts_of(records) -> list[EngineText]:
    """The decisions of records, as an engine gives them."""
    rows = zip(records["tokens"].tolist(), records["logprobs"].tolist(), records["length"].tolist(), strict=True)
    return [EngineText(tuple(tokens[:size]), tuple(logprobs[:size])) for tokens, logprobs, size in rows]


@pytest.mark.parametrize(("kind", "keys"), [("llama", LORA), ("qwen3", {}), ("gemma", LORA)])
def test_weights_are_those_of_a_saved_folder(tmp_path, kind, keys):
    policy = make(kind, **keys)
    assert isinstance(policy, ServedByEngine)
    policy.save(tmp_path / "saved")
    saved = dict(read_safetensors(tmp_path / "saved" / "model.safetensors"))
    sent = dict(policy.engine_weights())
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)
    assert not any(tensor.requires_grad for tensor in sent.values())


def test_weights_have_the_format_of_the_arithmetic():
    policy = make(precision="bf16", **LORA)
    assert policy.engine_facts.dtype == "bfloat16"
    assert {tensor.dtype for _, tensor in policy.engine_weights()} == {torch.bfloat16}


def test_the_folder_is_read_by_transformers(tmp_path):
    policy = make("qwen2")
    for _ in range(2):  # of a run that goes on
        policy.engine_folder(tmp_path / "engine")
    assert not list((tmp_path / "engine").glob("*.safetensors"))
    config = json.loads((tmp_path / "engine" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "engine")
    assert tokenizer("1+2=").input_ids == policy.tokenizer.prompt("1+2=")


def test_the_named_weights_make_the_network(tmp_path):
    policy = make("llama", **LORA)
    policy.engine_folder(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    network.load_state_dict(dict(policy.engine_weights()), strict=not policy.network.config.tie_word_embeddings)
    ids = torch.tensor([policy.tokenizer.prompt(TEXTS[0])])
    records = answered(policy, TEXTS[:1], Sampling(do_sample=False))
    likeliest = network(ids).logits[0, -1].detach().log_softmax(-1)
    assert int(likeliest.argmax()) == int(records["tokens"][0, 0])
    assert float(likeliest.max()) == pytest.approx(float(records["logprobs"][0, 0]), abs=1e-5)


def test_prompts_are_the_tokens_that_training_reads():
    policy = make()
    told = policy.encode_instructions(TEXTS)
    assert policy.engine_prompts(told) == [policy.tokenizer.prompt(text) for text in TEXTS]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(stop=("1", "+2"), ignore_eos=True)])
def test_decisions_are_those_that_the_policy_makes_of_the_same_tokens(sampling):
    policy = make()
    records = answered(policy, TEXTS, sampling)
    got = policy.engine_decision(texts_of(records), sampling).fields
    assert got.keys() == policy.spec.decision.keys()
    for name, field in got.items():
        assert torch.equal(field, records[name]), name
        assert field.dtype == records[name].dtype


def test_a_text_is_cut_where_the_policy_would_have_stopped():
    policy = make()
    tokens = policy.tokenizer.tokenizer("12+3=15;77", add_special_tokens=False).input_ids
    text = EngineText(tuple(tokens), tuple(-float(i) for i in range(len(tokens))))
    for stop, kept in ((("=",), "12+3="), (("5;",), "12+3=15;"), ((";", "3="), "12+3="), (("8",), "12+3=15;77")):
        fields = policy.engine_decision([text], Sampling(stop=stop)).fields
        assert int(fields["length"]) == len(kept)
        assert bytes(fields["actions"][0, 0].numpy()).rstrip(b"\0").decode() == kept
        assert (fields["logprobs"][0, len(kept) :] == 0).all()
        assert fields["logprobs"][0, : len(kept)].tolist() == list(text.logprobs[: len(kept)])


def test_a_policy_that_no_engine_can_serve_is_refused():
    rollout = RolloutConfig(backend="vllm")

    def model(policy):
        return Model(policy, torch.device("cpu"), SimpleNamespace(collective_passes=False))

    policy = make()
    assert check_policy(rollout, model(policy)) is policy
    with pytest.raises(ConfigError, match="FlowPolicy is no causal language model"):
        check_policy(rollout, model(FlowPolicy()))
    with pytest.raises(ConfigError, match="has a value head"):
        check_policy(rollout, model(make(value_head=True)))
    sharded = model(policy)
    sharded.sharding.collective_passes = True
    with pytest.raises(ConfigError, match="fsdp2"):
        check_policy(rollout, sharded)


def test_log_probs_may_differ_more_where_numbers_are_rounded():
    def gaps(travels) -> list[float]:
        runner = SimpleNamespace(weight_sync_dtype=travels)
        rollouts = [RolloutConfig(backend="vllm", max_logprob_gap=asked) for asked in (None, 0.5)]
        configs = [SimpleNamespace(rollout=rollout, runner=runner) for rollout in rollouts]
        return [max_gap(one, make(precision=precision)) for one in configs for precision in ("fp32", "bf16")]

    assert gaps(None) == gaps("fp32") == [1e-3, 0.1, 0.5, 0.5]
    assert gaps("bf16") == gaps("fp16") == [0.1, 0.1, 0.5, 0.5]


def test_facts_say_how_long_texts_may_be():
    facts = make(max_prompt_tokens=64).engine_facts
    assert (facts.max_tokens, facts.max_new_tokens) == (64 + N, N)
    assert facts.dtype == "float32"
    assert len(facts.ends) == 1
