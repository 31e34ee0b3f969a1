"""Exports of the text policy that are refused, and the signs that a tokenizer of ours has."""

from __future__ import annotations

import pytest
from causal_lm_texts import make

from embodied.errors import UnknownNameError
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
