"""Files of problems: random access by number, an index that is kept, and files that are damaged or change."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied.errors import AssetsMissingError, DatasetError
from embodied.rows import files, formats, offsets
from embodied.rows.files import SourceFile
from embodied.rows.formats import Rows, open_rows
from embodied.rows.offsets import record_offsets

TABLE = [
    {"prompt": "2+2=", "answer": "4", "source": "a"},
    {"prompt": 'two lines,\nand a "quote"', "answer": "é∑", "source": "b, c"},
    {"prompt": "", "answer": "x" * 5000, "source": ""},
    {"prompt": "last", "answer": "7", "source": "d"},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "cache" / "embodied" / "text"


def write_jsonl(path: Path, table: list[dict]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table), encoding="utf-8")


def write_json(path: Path, table: list[dict]) -> None:
    path.write_text(json.dumps(table), encoding="utf-8")


def write_csv(path: Path, table: list[dict]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)


def write_parquet(path: Path, table: list[dict]) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(table), path, row_group_size=3)


WRITERS = {".jsonl": write_jsonl, ".json": write_json, ".csv": write_csv, ".parquet": write_parquet}


@pytest.fixture(params=WRITERS)
def table_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"table{request.param}"
    WRITERS[request.param](path, TABLE)
    return path


def opened(path: Path) -> Rows:
    return open_rows(SourceFile.of(path))


def test_rows_are_found_by_number_and_in_order(table_file):
    found = opened(table_file)
    assert len(found) == len(TABLE)
    assert [found[number] for number in (3, 0, 2, 1)] == [TABLE[number] for number in (3, 0, 2, 1)]
    assert list(found) == TABLE


@pytest.mark.parametrize("block", [1, 2, 7, 64])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_records_that_cross_the_blocks_of_a_search(tmp_path, monkeypatch, block, end):
    monkeypatch.setattr(offsets, "BLOCK", block)
    path = tmp_path / "table.csv"
    path.write_bytes(f'a,b{end}1,"x{end}""y"""{end}{end}2,z'.encode())
    data = path.read_bytes()
    found = [data[start:stop] for start, stop in record_offsets(path, quoted=True)]
    assert [record.decode().rstrip("\r") for record in found] == ["a,b", f'1,"x{end}""y"""', "2,z"]
    assert list(opened(path)) == [{"a": "1", "b": f'x{end}"y"'}, {"a": "2", "b": "z"}]


def test_a_long_value_is_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f'prompt,answer\n"{"long, " * 50_000}",1\n', encoding="utf-8")
    assert list(opened(path)) == [{"prompt": "long, " * 50_000, "answer": "1"}]


def test_values_of_one_character_are_rows(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a\n1\n\n2\n", encoding="utf-8")
    assert [row["a"] for row in opened(path)] == ["1", "2"]


def test_a_byte_order_mark_belongs_to_no_column(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xef\xbb\xbfprompt,answer\n1,2\n")
    assert opened(path)[0] == {"prompt": "1", "answer": "2"}
    path = tmp_path / "table.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": 1}\n')
    assert opened(path)[0] == {"prompt": 1}


def test_a_parquet_file_of_many_batches_with_nested_values(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "ARROW_ROWS", 4)
    path, table = (
        tmp_path / "table.parquet",
        [{"prompt": [{"role": "user", "content": str(n)}], "n": n} for n in range(23)],
    )
    write_parquet(path, table)
    found = opened(path)
    assert [found[number] for number in range(23)] == table
    assert list(found) == table


def test_the_index_is_made_once_and_shared(tmp_path, monkeypatch, cache):
    path = tmp_path / "table.jsonl"
    write_jsonl(path, TABLE)
    opened(path)
    monkeypatch.setattr(formats, "record_offsets", lambda *_: pytest.fail("the index was made again"))
    found = opened(path)
    assert list(found) == TABLE
    assert isinstance(found._records._offsets, np.memmap)
    assert len(list(cache.iterdir())) == 1


def test_of_a_file_that_is_not_to_be_kept_each_process_makes_its_own(table_file, cache):
    source = replace(SourceFile.of(table_file), keep=False)
    rows, again = open_rows(source), open_rows(source)
    assert [*rows] == [*again] == TABLE
    assert rows[2] == TABLE[2]
    assert not cache.exists()
    assert not list(Path(tempfile.gettempdir()).glob("embodied-rows-*"))


def test_a_new_state_of_the_file_replaces_what_was_kept_of_the_old_one(tmp_path, cache):
    path = tmp_path / "table.jsonl"
    write_jsonl(path, TABLE)
    opened(path)
    before = {file.name for file in cache.iterdir()}
    write_jsonl(path, TABLE[:2])
    assert len(opened(path)) == 2
    after = {file.name for file in cache.iterdir()}
    assert len(after) == 1
    assert before != after


@pytest.mark.parametrize("table_file", [".jsonl", ".csv", ".parquet"], indirect=True)
def test_a_damaged_index_is_made_again(table_file, cache):
    assert len(opened(table_file)) == len(TABLE)
    for kept in cache.iterdir():
        kept.write_bytes(kept.read_bytes()[:40])
    assert list(opened(table_file)) == TABLE


def test_an_index_that_cannot_be_written_says_where(tmp_path, monkeypatch):
    path = tmp_path / "table.jsonl"
    write_jsonl(path, TABLE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(DatasetError, match=r"(?s)index of .*table\.jsonl to .*No space left.*XDG_CACHE_HOME"):
        opened(path)
    monkeypatch.setattr(files.tempfile, "TemporaryDirectory", lambda prefix: nullcontext(tmp_path))
    (tmp_path / "made").symlink_to("/dev/full")
    with pytest.raises(DatasetError, match=r"(?s)index of .*table\.jsonl to .*No space left.*TMPDIR"):
        open_rows(replace(SourceFile.of(path), keep=False))


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-3])
    os.replace(other, path)


@pytest.mark.parametrize("change", [grown, touched, replaced, Path.unlink])
def test_a_file_that_changes_during_the_run(table_file, change):
    found = opened(table_file)
    assert found[0] == TABLE[0]
    change(table_file)
    with pytest.raises(DatasetError, match=r"has changed since|can no longer be read") as raised:
        found[0]
    assert "start again" in raised.value.remedy


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"prompt": 1}\n{"prompt": \n', r"row 1 is no JSON"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', r"row 0 is no JSON"),
        ("a.jsonl", b"[1, 2]\n", r"row 0 is a list, expected an object"),
        ("a.json", b'{"prompt": 1}', r"holds a JSON dict, expected a list"),
        ("a.json", b'[{"prompt": 1}, 3]', r"row 1 is a int"),
        ("a.json", b"[", r"is no JSON"),
        ("a.csv", b'a,b\n1,"2\n', r"double quote is opened and never closed"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"row 1 has 3 values, and there are 2 columns: a, b"),
        ("a.csv", b"a,b\n1,\xff\n", r"record 1 is no CSV"),
        ("a.csv", b'a,b\n5" pipe,1\nb,2\n7" pipe,3\nc,4\n', r"record 1 has double quotes inside a value"),
        ("a.parquet", b"PAR1 not really", r"is no Parquet file"),
        ("a.txt", b"1\n", r"format '\.txt' is not known"),
        ("a.jsonl", b"", r"is empty"),
    ],
)
def test_damaged_files(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        list(opened(tmp_path / name))


def test_no_such_file(tmp_path):
    with pytest.raises(DatasetError, match="no file at"):
        SourceFile.of(tmp_path / "none.jsonl")
    with pytest.raises(DatasetError, match=r"\(a folder\)"):
        SourceFile.of(tmp_path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(AssetsMissingError, match="pyarrow"):
        opened(tmp_path / "a.parquet")
