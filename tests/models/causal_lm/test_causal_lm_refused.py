"""What the text policy refuses before anything is built or written, whose code it needs, and the signs of ASCII."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from causal_lm_texts import make
from embodied.models.causal_lm import build_policy
from embodied.models.causal_lm.files.own_code import tokenizer_code

from embodied.errors import ConfigError, UnknownNameError
from embodied.protocols import Examples


@pytest.mark.parametrize("kind", ["hf", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "int8", ""])
def test_a_format_that_no_folder_has_is_refused_before_anything_is_written(tmp_path, kind, dtype):
    keys = {"is_lora": True, "lora_rank": 2} if kind == "adapter" else {}
    with pytest.raises(UnknownNameError, match=rf"(?s)unknown dtype '{dtype}'.*--dtype"):
        make(**keys).export(kind, tmp_path / "out", dtype, Examples(), {})
    assert not (tmp_path / "out").exists()


def test_ascii_is_the_line_break_and_all_that_ascii_can_print():
    every = "\n" + "".join(chr(code) for code in range(128) if chr(code).isprintable())
    policy = make(characters="ascii", max_prompt_tokens=128)
    tokens = policy.tokenizer.prompt(every)
    assert len(tokens) == len(every) == 96
    assert policy.tokenizer.decode(tokens) == every


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
@pytest.mark.parametrize("value", [0, -4, 1.5, "32", True])
def test_a_size_that_counts_nothing_is_refused_by_its_key(key, value):
    with pytest.raises(ConfigError, match=rf"actor\.model\.{key} = .*counts something") as caught:
        build_policy(**{key: value})
    assert "whole number of at least 1" in caught.value.remedy


@pytest.mark.parametrize(
    ("kind", "model", "needed"),
    [
        (None, "qwen2", False),  # transformers has a tokenizer for such networks
        (None, "of_a_stranger", True),
        ("LlamaTokenizer", "of_a_stranger", False),
        ("TokenizerOfAStranger", "llama", True),
    ],
)
def test_code_of_a_tokenizer_is_needed_where_transformers_has_none(tmp_path, kind, model, needed):
    def write(name: str, values: dict[str, Any]) -> None:
        Path(tmp_path, name).write_text(json.dumps(values), encoding="utf-8")

    named = {} if kind is None else {"tokenizer_class": kind}
    write("config.json", {"model_type": model})
    write("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "theirs.Fast"]}, **named})
    assert tokenizer_code(tmp_path) == ("theirs.Fast" if needed else None)
    write("tokenizer_config.json", named)
    assert tokenizer_code(tmp_path) is None, "it names no code"
