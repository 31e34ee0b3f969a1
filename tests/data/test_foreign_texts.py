"""Files of demonstrated answers of others: each row is read as it stands, or refused with its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embodied.data.texts.reading import Reader
from embodied.data.texts.text import Columns, DemonstratedAnswer
from embodied.errors import DatasetError

ROW = json.dumps({"prompt": "1+1=", "response": "2"})
ASKED, ANSWERED = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}


def read(path: Path) -> list[DemonstratedAnswer]:
    return Reader(Columns(), keep=False).read([str(path)])


def file(folder: Path, name: str, text: str | bytes) -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def row(**columns: Any) -> str:
    return f"{ROW}\n{json.dumps(columns)}\n"


READ = {
    "a.jsonl": f"{ROW}\n{ROW}\n",
    "no_end.jsonl": f"{ROW}\n{ROW}",
    "bom.jsonl": f"\ufeff{ROW}\n{ROW}\n",
    "crlf.jsonl": f"{ROW}\r\n{ROW}\r\n",
    "blank.jsonl": f"{ROW}\n\n{ROW}\n\n",
    "a.json": f"[{ROW}, {ROW}]",
    "bom.json": f"\ufeff[{ROW}, {ROW}]",
    "a.csv": "prompt,response\n1+1=,2\n1+1=,2\n",
    "bom.csv": "\ufeffprompt,response\n1+1=,2\n1+1=,2\n",
    "crlf.csv": "prompt,response\r\n1+1=,2\r\n1+1=,2\r\n",
    "blank.csv": "prompt,response\n1+1=,2\n\n1+1=,2\n",
}


@pytest.mark.parametrize("name", READ)
def test_the_same_rows_are_read_of_each(tmp_path, name):
    found = read(file(tmp_path, name, READ[name]))
    assert [(one.instruction, one.response) for one in found] == [("1+1=", "2")] * 2


REFUSED = {
    "null prompt": ("a.jsonl", row(prompt=None, response="2"), "row 1 has NoneType 'None' in column 'prompt'"),
    "null response": ("a.jsonl", row(prompt="a", response=None), "row 1 has NoneType"),
    "number": ("a.jsonl", row(prompt="a", response=2), "row 1 has int '2' in column 'response'"),
    "list": ("a.jsonl", row(prompt=["a"], response="2"), "row 1 has list"),
    "empty prompt": ("a.jsonl", row(prompt="", response="2"), "row 1 has an empty text in column 'prompt'"),
    "empty response": ("a.jsonl", row(prompt="a", response=""), "row 1 has an empty text in column 'response'"),
    "empty in csv": ("a.csv", "prompt,response\na,\n", "row 0 has an empty text in column 'response'"),
    "nul": ("a.jsonl", row(prompt="a", response="2\0"), "row 1 has a control character in column 'response'"),
    "separator": ("a.jsonl", row(prompt="\x1e[", response="2"), "row 1 has a control character in column 'prompt'"),
    "half a character": ("a.jsonl", row(prompt="a\ud83d", response="2"), "row 1 has half of a surrogate pair"),
    "other columns": ("a.jsonl", row(q="a", a="b"), "row 1 has no column 'prompt', .*; it has q, a"),
    "cut": ("a.jsonl", f"{ROW}\n{ROW[:20]}", "row 1 is no JSON"),
    "deep": ("a.jsonl", "[" * 100_000 + "\n", "row 0 is no JSON"),
    "latin-1": ("a.jsonl", f'{ROW}\n{{"prompt": "é"}}\n'.encode("latin-1"), "row 1 is no JSON"),
    "no messages": ("a.jsonl", row(messages=[]), "row 1 has a conversation of 0 messages without one of the assistant"),
    "no answer": ("a.jsonl", row(messages=[ASKED]), "row 1 has a conversation of 1 messages without"),
    "no question": ("a.jsonl", row(messages=[ANSWERED]), "row 1 has a message of the assistant that answers nothing"),
    "empty answer": ("a.jsonl", row(messages=[ASKED, {**ANSWERED, "content": ""}]), "row 1 has an empty text"),
    "nul in a message": ("a.jsonl", row(messages=[{**ASKED, "content": "a\0"}, ANSWERED]), "a control character"),
    "messages a number": ("a.jsonl", row(messages=3), "row 1 has int '3' in column 'messages'"),
    "messages a text": (
        "a.jsonl",
        row(messages=json.dumps([ASKED, ANSWERED])),
        "row 1 has str .* in column 'messages'",
    ),
    "messages an object": ("a.jsonl", row(messages=ASKED), "row 1 has dict .* in column 'messages'"),
    "sharegpt": ("a.jsonl", row(messages=[{"from": "human", "value": "a"}]), "row 1 has the message {'from': 'human'"),
    "no list": ("a.json", json.dumps({"data": [1]}), "holds a JSON dict, expected a list"),
    "lines": ("a.json", f"{ROW}\n{ROW}\n", "is no JSON: Extra data"),
    "deep list": ("a.json", "[" * 100_000, "is no JSON"),
    "columns twice": ("a.csv", "prompt,prompt,response\na,b,c\n", "has two columns 'prompt'"),
    "semicolons": ("a.csv", "prompt;response\na;b\n", "row 0 has no column 'prompt', .*; it has prompt;response"),
    "old line ends": ("a.csv", "prompt,response\ra,b\rc,d\r", "record 0 has a carriage return in it"),
    "open quote": ("a.csv", 'prompt,response\na,"b\n', "a double quote is opened and never closed"),
    "too few": ("a.csv", "prompt,response\na\n", "row 0 has 1 values, and there are 2 columns"),
    "nothing": ("a.csv", "prompt,response\n", "has no demonstrated answer"),
    "no parquet": ("a.parquet", "<html>", "is no Parquet file"),
}


@pytest.mark.parametrize(("name", "text", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_odd_is_refused(tmp_path, name, text, said):
    path = file(tmp_path, name, text)
    with pytest.raises(DatasetError, match=said) as refused:
        read(path)
    assert str(path) in refused.value.message
    assert refused.value.remedy


def test_a_damaged_parquet_file_is_not_blamed_on_the_disk(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": ["a", "b"], "response": ["b", "c"]}), path, compression="none")
    data = bytearray(path.read_bytes())
    data[20:40] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"a.parquet (is damaged|is no Parquet file)") as refused:
        read(path)
    assert refused.value.remedy == "download or write it again"


def test_null_in_parquet_is_refused(tmp_path):
    pq.write_table(pa.table({"prompt": ["a", None], "response": ["b", "c"]}), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match="row 1 has NoneType"):
        read(tmp_path / "a.parquet")
