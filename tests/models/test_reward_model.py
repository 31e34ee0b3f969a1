"""The sequence classifier that scores answers: against transformers one by one, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from embodied.models.causal_lm import build_reward_model
from reward_folders import CHARACTERS, TEMPLATE, write_classifier
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from embodied import instructions
from embodied.errors import CheckpointError, ConfigError, SpecMismatchError

PROMPTS = ["1+2=", "12+3=", "", "1+2=", "a b c d x y z 0123456789 a b c d", "x", "1+"]
RESPONSES = ["3", "15 15 15", "y", "4", "", "0123456789" * 4, "1<pad>"]
LATER = ["1<eos>", "1<unk>", "1 "]  # a token that no text above has is not what ends these


@torch.no_grad()
def one_by_one(network, tokenizer, texts: list[str]) -> list[float]:
    """What transformers makes of each text alone."""
    return [network(**tokenizer(text, return_tensors="pt")).logits.item() for text in texts]


@pytest.mark.parametrize("pad", [0, None])  # which the network's config names, or does not
@pytest.mark.parametrize("side", ["left", "right"])  # which the tokenizer would fill up
def test_scores_are_those_of_transformers_one_by_one(tmp_path, pad, side):
    network = write_classifier(tmp_path, pad_token_id=pad)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    tokenizer.padding_side = side
    tokenizer.save_pretrained(tmp_path)
    wanted = one_by_one(network, tokenizer, [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)])
    later = one_by_one(network, tokenizer, ["2", *LATER])
    assert max(wanted) - min(wanted) > 0.05
    for size in (1, 2, 4, 100):
        model = build_reward_model(str(tmp_path), micro_batch_size=size)
        assert list(model(PROMPTS, RESPONSES)) == pytest.approx(wanted, abs=1e-6)
        assert list(model(["2", *LATER], [""] * 4)) == pytest.approx(later, abs=1e-6)


def test_a_batch_that_has_every_token_needs_none_to_fill_up(tmp_path):
    network = write_classifier(tmp_path, pad_token_id=None, vocab_size=3 + len(CHARACTERS))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    everything = f"<pad><eos><unk>{CHARACTERS}"
    wanted = one_by_one(network, tokenizer, [everything, "x1"])
    assert list(build_reward_model(str(tmp_path))([everything, "x"], ["", "1"])) == pytest.approx(wanted, abs=1e-6)


def test_a_chat_template_makes_a_conversation_of_it(tmp_path):
    network = write_classifier(tmp_path, TEMPLATE)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    talk = [{"role": "system", "content": "x"}, {"role": "user", "content": "1+2="}]
    prompts = ["1+2=", instructions.of_messages(talk)]
    shown = ["user: 1+2=\nassistant: 3\n", "system: x\nuser: 1+2=\nassistant: 3\n"]
    found = build_reward_model(str(tmp_path))(prompts, ["3", "3"])
    assert list(found) == pytest.approx(one_by_one(network, tokenizer, shown), abs=1e-6)


def test_of_a_long_text_the_end_is_read(tmp_path):
    network = write_classifier(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    short = build_reward_model(str(tmp_path), max_length=3)
    assert list(short(["abcd", "0"], ["xyz", "1"])) == pytest.approx(
        one_by_one(network, tokenizer, ["xyz", "01"]), abs=1e-6
    )
    assert "at most 3 tokens" in short.describe()["texts"]


def test_another_tokenizer_may_be_named(tmp_path):
    network = write_classifier(tmp_path / "model", vocab_size=64)
    write_classifier(tmp_path / "tokenizer", TEMPLATE)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "tokenizer")
    model = build_reward_model(str(tmp_path / "model"), tokenizer_path=str(tmp_path / "tokenizer"))
    assert list(model(["1"], ["2"])) == pytest.approx(
        one_by_one(network, tokenizer, ["user: 1\nassistant: 2\n"]), abs=1e-6
    )


def test_a_conversation_without_a_chat_template_is_refused(tmp_path):
    write_classifier(tmp_path)
    with pytest.raises(SpecMismatchError, match="the tokenizer of the reward model has no chat template"):
        build_reward_model(str(tmp_path))([instructions.of_messages([{"role": "user", "content": "1"}])], ["2"])


def test_sixteen_bits_round_a_score(tmp_path):
    network = write_classifier(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    (wanted,) = one_by_one(network, tokenizer, ["1+2=3"])
    (found,) = build_reward_model(str(tmp_path), precision="bf16")(["1+2="], ["3"])
    assert found != wanted
    assert found == pytest.approx(wanted, rel=0.1, abs=0.02)


def test_what_is_no_reward_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no folder .*nowhere") as failed:
        build_reward_model(str(tmp_path / "nowhere"))
    assert "reward.model.model_path" in failed.value.remedy
    write_classifier(tmp_path / "two", num_labels=2)
    with pytest.raises(CheckpointError, match="has 2 logits"):
        build_reward_model(str(tmp_path / "two"))
    write_classifier(tmp_path / "language")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    network = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=64, num_labels=1, **sizes))
    network.save_pretrained(tmp_path / "language")
    with pytest.raises(CheckpointError, match=r"no whole sequence classifier: it lacks score\.weight"):
        build_reward_model(str(tmp_path / "language"))
    write_classifier(tmp_path / "bare")
    for file in (tmp_path / "bare").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer that can be read") as failed:
        build_reward_model(str(tmp_path / "bare"))
    assert "reward.model.tokenizer_path" in failed.value.remedy
    write_classifier(tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        build_reward_model(str(tmp_path / "cut"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_length": 0}, "reward.model.max_length is 0"),
        ({"micro_batch_size": 0}, "reward.model.micro_batch_size is 0"),
        ({"precision": "bf61"}, "Did you mean 'bf16'"),
    ],
)
def test_impossible_options_are_refused(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        build_reward_model(str(tmp_path), **options)


def test_its_weights_wait_in_host_memory(tmp_path):
    write_classifier(tmp_path)
    wanted = build_reward_model(str(tmp_path))(["1+"], ["2"])
    moves = []
    for offload in (False, True):
        model = build_reward_model(str(tmp_path), offload_weight=offload)
        model._network.to = lambda where, network=model._network: moves.append(str(where)) or network
        model.to(torch.device("cpu", 0))
        assert model(["1+"], ["2"]) == wanted
        moves.append("next")
    assert moves == ["cpu:0", "cpu:0", "next", "cpu:0", "cpu", "next"]
