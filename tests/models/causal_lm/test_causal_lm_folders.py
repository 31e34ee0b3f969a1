"""Building, folders, prompts and refusals of the text policy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from causal_lm_texts import ENV, SIZES, TEXTS, answered, make
from embodied.models.causal_lm import build_policy
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from embodied import instructions
from embodied.errors import CheckpointError, EmbodiedError, SpecMismatchError
from embodied.types import ContinuousAction, EnvSpec, Sampling

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thinking\n{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that a policy with a value head has written."""
    path = tmp_path_factory.mktemp("folders") / "saved"
    policy = make("qwen2", value_head=True)
    with torch.no_grad():
        policy.value_head.weight.fill_(0.5)
    policy.save(path)
    return path


@pytest.fixture
def template(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE, encoding="utf-8")
    return str(file)


def shown(policy, text: str) -> str:
    return policy.tokenizer.decode(policy.tokenizer.prompt(text))


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_a_saved_folder_loads_back_bit_equal_also_in_transformers(kind, tmp_path):
    policy = make(kind)
    policy.save(tmp_path / "saved")
    again = make(model_path=str(tmp_path / "saved"))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    state = policy.network.state_dict()
    assert {name: tuple(value.shape) for name, value in theirs.items()} == {n: tuple(v.shape) for n, v in state.items()}
    for name, value in state.items():
        assert torch.equal(again.network.state_dict()[name], value), name
        assert torch.equal(theirs[name], value), name
    first, second = answered(policy), answered(again)
    assert all(torch.equal(second[name], value) for name, value in first.items())
    tokens = PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")("1+2=").input_ids
    assert tokens == policy.tokenizer.prompt("1+2=")
    with pytest.raises(CheckpointError, match="is not empty"):
        policy.save(tmp_path / "saved")


def test_adapters_are_merged_and_stand_beside(tmp_path):
    policy = make(is_lora=True, lora_init_weights=False, lora_rank=4)
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 7 * 2  # A and B of seven layers, twice
    assert all(".lora_" in name for name in trained)
    policy.save(tmp_path / "saved")
    merged, records = make(model_path=str(tmp_path / "saved")), answered(policy)
    with torch.no_grad():
        wanted = policy.evaluate(records, Sampling()).logprobs
        assert torch.allclose(merged.evaluate(records, Sampling()).logprobs, wanted, atol=1e-4)
        plain = make().evaluate(records, Sampling()).logprobs
        assert not torch.allclose(plain, wanted, atol=1e-2)
        path = str(tmp_path / "saved" / "lora_adapter")
        adapted = make(is_lora=True, lora_rank=4, lora_path=path)
        assert torch.equal(adapted.evaluate(records, Sampling()).logprobs, wanted)


def test_modules_beside_the_adapters_and_frozen_ones():
    policy = make(is_lora=True, lora_target_modules=["q_proj"], lora_modules_to_save=["lm_head"],
                  freeze_pattern=r"layers\.0\.")  # fmt: skip
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert trained == {
        "network.lm_head.weight", *(f"network.model.layers.1.self_attn.q_proj.lora_{x}.default.weight" for x in "AB")
    }  # fmt: skip
    policy.evaluate(answered(policy), Sampling()).logprobs.sum().backward()
    assert {name for name, p in policy.named_parameters() if p.grad is not None} == trained


def test_the_value_head_is_saved_and_loaded(folder):
    policy = make(model_path=str(folder), value_head=True)
    assert policy.value_head.weight.eq(0.5).all()
    assert not policy.spec.random_weights
    assert make().spec.random_weights


def test_the_seed_decides_the_weights_whatever_was_drawn_before():
    states = []
    for seed, before in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(before)
        states.append(make(seed=seed, is_lora=True).state_dict())
        assert torch.rand(1) == torch.rand(2, generator=torch.Generator().manual_seed(before))[0]
    first, same, other = states
    assert all(torch.equal(value, same[name]) for name, value in first.items())
    assert not torch.equal(first["network.lm_head.weight"], other["network.lm_head.weight"])


def test_answers_become_tokens_and_text_again():
    policy = make(max_new_tokens=6)
    texts = ["12", "a=3", "", "123456789"]
    rows = torch.zeros(4, 1, 40, dtype=torch.uint8)
    for row, text in zip(rows, texts, strict=True):
        instructions.write(text, row[0].numpy())
    fields = policy.encode_actions(rows)
    assert fields["length"].tolist() == [3, 4, 1, 6]
    eos = policy.tokenizer.ends[0]
    assert [row[: int(n)].tolist()[-1] == eos for row, n in zip(*fields.values(), strict=True)] == [True] * 3 + [False]
    assert [policy.tokenizer.text(row[: int(n)].tolist()) for row, n in zip(*fields.values(), strict=True)] == [
        "12", "a=3", "", "123456",
    ]  # fmt: skip
    for name, value in fields.items():
        declared = policy.spec.decision[name]
        assert (str(value.dtype), value.shape[1:]) == (f"torch.{declared.dtype}", declared.shape)


def test_a_text_becomes_a_user_message(template):
    policy = make(chat_template=template, max_prompt_tokens=200)
    assert shown(policy, "1+2=") == "user: 1+2=\nassistant: "
    messages = [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"},
                {"role": "user", "content": "+4?"}]  # fmt: skip
    assert shown(policy, instructions.of_messages(messages)) == "user: 1+2=\nassistant: 3\nuser: +4?\nassistant: "
    policy = make(chat_template=template, max_prompt_tokens=200, system_prompt="be brief", enable_thinking=False)
    assert shown(policy, "1+2=") == "system: be brief\nuser: 1+2=\nno thinking\nassistant: "
    own = instructions.of_messages([{"role": "system", "content": "other"}, *messages[:1]])
    assert shown(policy, own) == "system: other\nuser: 1+2=\nno thinking\nassistant: "
    assert policy.describe()["prompts"] == "chat template"


def test_a_chat_template_of_the_folder_is_used_unless_never(folder, tmp_path):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    keys = {"model_path": str(folder), "tokenizer_path": str(tmp_path)}
    assert shown(make(**keys), "1+2=") == "user: 1+2=\nassistant: "
    assert shown(make(**keys, chat="never"), "1+2=") == "1+2="


@pytest.mark.parametrize(("side", "kept"), [("left", "6789="), ("right", "12345")])
def test_a_long_prompt_is_cut_only_if_asked(side, kept):
    assert shown(make(max_prompt_tokens=5, truncation=side), "123456789=") == kept
    with pytest.raises(SpecMismatchError, match=r"a prompt has 10 tokens.*max_prompt_tokens is 5") as raised:
        make(max_prompt_tokens=5).encode_instructions(["123456789="])
    assert raised.value.message.endswith("'123456789='")
    assert "to 10 or more" in raised.value.remedy
    assert "data.filter_overlong_prompts=true" in raised.value.remedy


def test_prompts_of_any_kind_are_answered():
    policy = make()
    told = policy.encode_instructions(["", "Ünïcode"])
    assert told["prompt_length"].tolist() == [1, 7]
    assert policy.act(told, torch.rand(2, 12), Sampling()).fields["length"].min() >= 1


def rows_of(text: str) -> torch.Tensor:
    rows = np.zeros((1, 1, 40), np.uint8)
    instructions.write(text, rows[0, 0])
    return torch.from_numpy(rows)


def test_characters_without_a_token_are_said_and_may_not_be_demonstrated():
    policy, ascii_policy = make(), make(characters="ascii")
    for text, lines in (("1+2=", 0), ("What is 1+2?", 1)):
        assert len(policy.probe(policy.encode_instructions([text]))) == lines
        assert ascii_policy.probe(ascii_policy.encode_instructions([text])) == ()
    with pytest.raises(SpecMismatchError, match=re.escape(r"has no token (\ { }): '\boxed{3}'")) as raised:
        policy.encode_actions(rows_of(r"\boxed{3}"))
    assert "actor.model.characters" in raised.value.remedy
    told = ascii_policy.encode_actions(rows_of(r"\boxed{3}"))
    assert ascii_policy.tokenizer.text(told["tokens"][0, : told["length"][0]].tolist()) == r"\boxed{3}"


def test_what_pads_a_tokenizer_is_exported_and_fills_up_rows(folder, tmp_path):
    usual, own = build_policy(model_path=str(folder)), build_policy(
        model_path=str(folder), padding_side="left", pad_token=7
    )  # fmt: skip
    for policy, side, pad in ((usual, "right", usual.tokenizer.tokenizer.pad_token_id), (own, "left", 7)):
        prompts = policy.encode_instructions(["12", "1"])["prompt_ids"]
        assert prompts[1].tolist() == [*prompts[0, :1].tolist(), pad]
        policy.save(tmp_path / side)
        read = AutoTokenizer.from_pretrained(tmp_path / side)
        assert (read.padding_side, read.pad_token_id) == (side, pad)
    assert usual.tokenizer.tokenizer.pad_token_id != 7
    again = build_policy(model_path=str(tmp_path / "left"))
    assert (again.tokenizer.tokenizer.padding_side, again.tokenizer.pad_id) == ("left", 7)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"pad_token": 4096}, "set rollout.padding to an id below that"),
        ({"padding_side": "middle"}, "unknown padding_side 'middle'"),
        ({"max_new_token": 3}, r"Did you mean 'max_new_tokens'"),
        ({"truncation": "middle"}, "unknown truncation 'middle'"),
        ({"max_new_tokens": 0}, "counts something"),
        ({"chat": "always"}, "the tokenizer has no chat template"),
        ({"chat_template": "/no/such/file"}, "there is no such file"),
        ({"system_prompt": "be brief"}, "without a chat template"),
        ({"model_path": "/no/such/folder"}, "no folder /no/such/folder"),
        ({"gguf_file": "a.gguf"}, "lies in no folder"),
        ({"lora_path": "/adapters"}, "is_lora is false"),
        ({"is_lora": True, "lora_alpha": "none"}, "it scales the adapters"),
        ({"is_lora": True, "lora_dropout": "none"}, "it is a probability"),
        ({"characters": "aa"}, "each must stand there once"),
        ({"override_config": {"hidden_sizes": 3}}, "Did you mean 'hidden_size'"),
        ({"override_config": {"model_type": "lama"}}, "Did you mean 'llama'"),
        ({"override_config": {"hidden_size": 33, "head_dim": None}}, "override_config"),
        ({"freeze_pattern": "nothing_has_this_name"}, "no parameter matches"),
        ({"freeze_pattern": "("}, "not a regular expression"),
        ({"freeze_pattern": "."}, "no parameter is trained"),
        ({"is_lora": True, "lora_target_modules": ["q_pro"]}, "Did you mean 'q_proj'"),
        ({"trust_remote_code": "yes"}, "it is a switch"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(keys, said):
    with pytest.raises(EmbodiedError, match=re.escape(said) if "(" not in said else said) as caught:
        build_policy(**keys)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4}, "it has no embed_tokens"),
        ({"model_type": "granite", "logits_scaling": 4.0}, "its logits differ"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}, "positions are dynamic"),
    ],
)
def test_an_architecture_that_cannot_be_run_is_refused_by_name(sizes, said, tmp_path):
    kind = sizes.get("model_type", "llama")
    own = {} if kind == "gpt2" else SIZES
    given = {"vocab_size": 64, **own, **{key: value for key, value in sizes.items() if key != "model_type"}}
    config = AutoConfig.for_model(kind, **given)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    make().tokenizer.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"architecture '{kind}' cannot be run here: .*{said}"):
        build_policy(model_path=str(tmp_path))


def test_a_damaged_folder_is_named(folder, tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors"):
        build_policy(model_path=str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        build_policy(model_path=str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="no tokenizer that can be read"):
        build_policy(model_path=str(tmp_path))


def test_a_folder_with_missing_weights_is_refused(folder, tmp_path):
    """transformers only warns, and goes on with random ones."""
    make(model_path=str(folder)).save(tmp_path / "copy")
    file = tmp_path / "copy" / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks .*model\.layers\.1\.mlp\.up_proj\.weight"):
        build_policy(model_path=str(tmp_path / "copy"))


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(folder, tmp_path):
    many = make(characters="".join(map(chr, range(0x400, 0x45A))))
    many.tokenizer.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="the tokenizer has 93 tokens"):
        build_policy(model_path=str(folder), tokenizer_path=str(tmp_path))


def test_another_kind_of_env_is_refused():
    policy = make()
    env = EnvSpec({}, (), ContinuousAction((-1.0,), (1.0,)), ("a",), (1,), 1, 1.0)
    with pytest.raises(SpecMismatchError, match="takes a ContinuousAction"):
        policy.bind(env)
    policy.bind(ENV)
    assert policy.spec.decision["actions"].shape == (1, 40)
    with pytest.raises(SpecMismatchError, match="without a chat template"):
        policy.encode_instructions([instructions.of_messages([{"role": "user", "content": "a"}])])


def test_transcripts_that_may_become_too_long_are_refused_at_the_start(template):
    env = replace(ENV, max_episode_steps=2)  # of 64 bytes
    make(max_prompt_tokens=64).bind(env)
    with pytest.raises(SpecMismatchError, match=r"grow to 64 bytes, 0 tokens .*max_prompt_tokens is 63"):
        make(max_prompt_tokens=63).bind(env)
    framed = make(chat_template=template, max_prompt_tokens=64)
    around = framed.tokenizer.length("77") - 2
    assert around > 0
    with pytest.raises(SpecMismatchError, match=rf"64 bytes, {around} tokens") as raised:
        framed.bind(env)
    assert f"max_prompt_tokens={64 + around}," in raised.value.remedy
    make(chat_template=template, max_prompt_tokens=64 + around).bind(env)
    make(chat_template=template, max_prompt_tokens=64, truncation="left").bind(env)
    framed.bind(ENV)  # one turn: only a prompt of the data could be too long


def test_every_end_of_the_checkpoint_ends_a_text(folder, tmp_path):
    policy = make(model_path=str(folder))
    told, noise, likeliest = policy.encode_instructions(TEXTS[:1]), torch.rand(1, 12), Sampling(do_sample=False)
    first = int(policy.act(told, noise, likeliest).fields["tokens"][0, 0])
    policy.save(tmp_path / "copy")
    file = tmp_path / "copy" / "generation_config.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text(encoding="utf-8")), "eos_token_id": [first, 1]}), encoding="utf-8"
    )
    policy = make(model_path=str(tmp_path / "copy"))
    assert policy.tokenizer.ends == (1, first)
    fields = policy.act(told, noise, likeliest).fields
    assert fields["tokens"][0, :2].tolist() == [first, 0]
    assert fields["length"].tolist() == [1]
    assert not fields["actions"].any()


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = "import sys, embodied.models.causal_lm; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout == "[]\n"
