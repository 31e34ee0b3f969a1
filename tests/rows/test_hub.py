"""Data sets of Hugging Face, from folders on this machine: subsets, splits, and the copy that is read."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from embodied.data.texts.reading import Reader
from embodied.data.texts.text import Columns
from embodied.errors import AssetsMissingError, ConfigError, DatasetError
from embodied.rows import files, hub
from embodied.rows.custom import load_custom
from embodied.rows.files import SourceFile, SourceName
from embodied.rows.hub import Part, is_hub_name, source_of
from embodied.rows.opening import open_source

datasets = pytest.importorskip("datasets")

CARD = """---
configs:
- config_name: main
  default: true
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
- config_name: hard
  data_files:
  - {split: train, path: hard/train.jsonl}
---
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache" / "embodied" / "text"


def table(name: str, count: int) -> list[dict]:
    return [{"prompt": f"{name} {n}", "answer": str(n), "tags": [name], "more": {"n": n}} for n in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two configurations; the first has two splits."""
    home = tmp_path / "sums"
    for path, count in (("main/train", 2500), ("main/test", 3), ("hard/train", 4)):
        file = home / f"{path}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in table(path, count)), encoding="utf-8")
    (home / "README.md").write_text(CARD, encoding="utf-8")
    return home


def opened(where: Path, *part: object):
    wanted = Part(*part)  # type: ignore[arg-type]
    return open_source(source_of(str(where), wanted), wanted)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (("main", ("test",)), table("main/test", 3)),
        ((None, ("test",)), table("main/test", 3)),
        (("hard",), table("hard/train", 4)),
        (("main", ("train",)), table("main/train", 2500)),
        (("main", ("test", "train")), table("main/test", 3) + table("main/train", 2500)),
    ],
)
def test_the_rows_of_a_part(folder, part, expected):
    rows = opened(folder, *part)
    assert list(rows) == expected
    assert len(rows) == len(expected)
    assert rows[len(expected) - 1] == expected[-1]


def test_what_a_data_set_has_is_said(folder):
    with pytest.raises(DatasetError, match="has the splits train, test"):
        opened(folder, "main")
    with pytest.raises(DatasetError, match=r"split dev\) has the splits train, test"):
        opened(folder, "main", ("dev",))
    with pytest.raises(DatasetError, match=r"subset easy\) cannot be loaded: .*(main|hard)"):
        opened(folder, "easy")
    (folder.parent / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"empty cannot be loaded"):
        opened(folder.parent / "empty")


def test_the_copy_is_made_once_and_read_without_the_package(folder, cache, monkeypatch):
    assert len(opened(folder, "hard")) == 4
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(opened(folder, "hard")) == table("hard/train", 4)
    with pytest.raises(AssetsMissingError, match="'datasets'"):
        opened(folder, "main", ("test",))
    assert len(list(cache.iterdir())) == 1


def test_of_a_folder_that_is_not_to_be_kept_no_copy_stays(folder, cache, monkeypatch):
    monkeypatch.setattr(files, "_next_check", {})
    rows = open_source(source_of(str(folder), Part("hard"), keep=False), Part("hard"))
    assert [*rows] == table("hard/train", 4)
    assert rows[1] == table("hard/train", 4)[1], "after a look at the folder"
    found = Reader(Columns(response="answer"), keep=False).read([str(folder)], Part("hard"))
    assert len(found) == 4
    assert not cache.exists()


def test_a_folder_that_changes_is_noticed_and_read_anew(folder):
    rows = opened(folder, "hard")
    file = folder / "hard" / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in table("other", 5)), encoding="utf-8")
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 10))
    with pytest.raises(DatasetError, match="has changed since"):
        rows[0]
    assert list(opened(folder, "hard")) == table("other", 5)


def test_a_folder_is_looked_at_once_a_while_and_not_for_each_row(folder, monkeypatch):
    rows, now = opened(folder, "hard"), 0.0
    seen: list[Path] = []
    look = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda path, form: seen.append(path) or look(path, form))
    monkeypatch.setattr(files.time, "monotonic", lambda: now)
    monkeypatch.setattr(files, "_next_check", {})
    (folder / ".hidden").write_text("a download's lock", encoding="utf-8")  # changes the folder's own time, and no file
    assert [rows[number % 4] for number in range(100)] == table("hard/train", 4) * 25
    assert seen == [folder]
    (folder / "hard" / "train.jsonl").rename(folder / "hard" / "other.jsonl")
    rows[0]
    now = files.FOLDER_CHECK_S
    with pytest.raises(DatasetError, match=r"files of .*sums have other names"):
        rows[0]


@pytest.mark.parametrize("several", [False, True])
def test_what_save_to_disk_has_written(tmp_path, several):
    made = datasets.Dataset.from_list(table("saved", 3))
    whole = datasets.DatasetDict({"train": made, "test": made.select([0])}) if several else made
    whole.save_to_disk(str(tmp_path / "saved"))
    if several:
        assert list(opened(tmp_path / "saved", None, ("test",))) == table("saved", 1)
    else:
        assert list(opened(tmp_path / "saved")) == table("saved", 3)
        with pytest.raises(DatasetError, match="is one split"):
            opened(tmp_path / "saved", None, ("test",))


def test_a_folder_of_parquet_files(tmp_path):
    (tmp_path / "parts").mkdir()
    for number in range(2):
        datasets.Dataset.from_list(table(f"{number}", 2)).to_parquet(tmp_path / "parts" / f"{number}.parquet")
    assert list(opened(tmp_path / "parts")) == table("0", 2) + table("1", 2)


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ({"answer": "00012"}, "'answer' is int64, then string"),
        ({"answer": 12, "odd": 1}, "'odd' is missing, then int64"),
        ({"odd": 1}, "'answer' is int64, then missing"),
    ],
)
def test_columns_that_change_are_refused(monkeypatch, later, said):
    arrow = pytest.importorskip("pyarrow")
    tables = [arrow.Table.from_pylist([row]) for row in ({"answer": 3}, {"answer": None}, later)]
    monkeypatch.setattr(hub, "_tables", lambda *_: iter(tables[:2]))
    assert list(opened(Path("some/name"))) == [{"answer": 3}, {"answer": None}]
    monkeypatch.setattr(hub, "_tables", lambda *_: iter(tables))
    with pytest.raises(DatasetError, match=said):
        opened(Path("another/name"))


def test_texts_of_a_folder_do_not_become_numbers(folder):
    for name, answer in (("a", 7), ("b", "00012")):
        (folder / "hard" / f"{name}.jsonl").write_text(
            json.dumps({"prompt": "x", "answer": answer}) + "\n", encoding="utf-8"
        )
    assert list(opened(folder, "hard")) == table("hard/train", 4)  # of other files
    card = CARD.replace("hard/train.jsonl", "'hard/?.jsonl'")
    (folder / "README.md").write_text(card, encoding="utf-8")
    with pytest.raises(DatasetError, match=r"'answer' is a number in .*a.jsonl, and a text in .*b.jsonl"):
        opened(folder, "hard")
    columns = "[{name: prompt, dtype: string}, {name: answer, dtype: string}]"
    declared = f"dataset_info:\n- config_name: hard\n  features: {columns}\n---\n"
    (folder / "README.md").write_text(card.removesuffix("---\n") + declared, encoding="utf-8")
    assert [row["answer"] for row in opened(folder, "hard")] == ["7", "00012"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"answer": null}\n{"answer": 7}\n', '{"answer": "00012"}\n'),
        ('{"answer": 7}\n', '{"answer": null}\n\n{"answer": "00012"}\n'),
        ('[{"answer": 7}]', '[{"answer": "00012"}]'),
        ('[\n {"answer": null},\n {"answer": 7}\n]', '{"answer": "00012"}\n'),
    ],
)
def test_a_text_is_found_behind_a_null_and_in_a_list(tmp_path, one, other):
    home = tmp_path / "mixed"
    home.mkdir()
    (home / "a.json").write_text(one, encoding="utf-8")
    (home / "b.json").write_text(other, encoding="utf-8")
    with pytest.raises(DatasetError, match=r"'answer' is a number in .*a.json, and a text in .*b.json"):
        opened(home)


def test_lists_and_nulls_of_one_kind_are_read(tmp_path):
    home = tmp_path / "alike"
    home.mkdir()
    (home / "a.json").write_text('[{"answer": null}, {"answer": "7"}]', encoding="utf-8")
    (home / "b.json").write_text('{"answer": "00012"}\n{"answer": null}\n', encoding="utf-8")
    assert [row["answer"] for row in opened(home)] == [None, "7", "00012", None]


@pytest.mark.parametrize(
    ("where", "expected"),
    [("openai/gsm8k", True), ("gsm8k", True), ("some/a.v1", True), ("train.jsonl", False), ("a/b/c", False),
     ("data/train.parquet", False), ("/data/gsm8k", False), ("./gsm8k", False)],
)  # fmt: skip
def test_names_are_told_from_files(where, expected):
    assert is_hub_name(where) == expected
    assert (not expected) or isinstance(source_of(where), SourceName)


def test_a_name_that_cannot_be_reached_says_so():
    with pytest.raises(DatasetError, match=r"the data set nobody/nothing \(revision v1\) cannot be loaded") as raised:
        opened(Path("nobody/nothing"), None, (), "v1")
    assert "a folder of them" in raised.value.remedy


def test_files_have_no_parts_and_folders_no_revision(folder, tmp_path):
    file = tmp_path / "some.jsonl"
    file.write_text('{"prompt": 1}\n', encoding="utf-8")
    assert type(source_of(str(file))) is SourceFile
    with pytest.raises(ConfigError, match=r"some.jsonl is a file, and has no \(split test\)"):
        source_of(str(file), Part(split=("test",)))
    with pytest.raises(ConfigError, match="revision is main"):
        source_of(str(folder), Part(revision="main"))


def test_a_tilde_is_the_folder_of_the_user(folder, tmp_path, monkeypatch):
    """Shells leave it as it is in data=~/some.jsonl."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "some.jsonl").write_text('{"prompt": 1}\n', encoding="utf-8")
    (tmp_path / "made.py").write_text("def rows():\n    return [{'prompt': 2}]\n", encoding="utf-8")
    assert source_of("~/some.jsonl").path == tmp_path / "some.jsonl"
    assert source_of(f"~/{folder.relative_to(tmp_path)}").path == folder
    assert load_custom("~/made.py:rows", {})[0]["prompt"] == 2


def test_demonstrations_are_read_too(folder):
    found = Reader(Columns(response="answer")).read([str(folder)], Part("hard"))
    assert [(one.instruction, one.response) for one in found[:2]] == [("hard/train 0", "0"), ("hard/train 1", "1")]
