"""Answers of an evaluation in a file: every text that a model writes can be kept."""

from __future__ import annotations

import json

import pytest

from embodied.run.build import texts


@pytest.mark.parametrize("text", ["plain", "é → 数", "half of a pair: \ud83d", "\udc80 and é", "a\nb\u2028c"])
def test_any_text_is_written_and_read_again(tmp_path, text):
    file = tmp_path / "generations" / "000001.jsonl"
    kept = [{"episode": 1, "prompt": "p", "response": text}, {"episode": 0, "prompt": text, "response": "é"}]
    texts.write(file, kept, {"name": None})
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["episode"] for line in lines] == [0, 1]
    assert json.loads(lines[1])["response"] == text
