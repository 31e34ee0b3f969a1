"""Headers of safetensors files and indexes from strangers: an explained error each, and no memory is taken for them."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutations import limits

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.weights.header import Entry, read_header
from embodied.weights.listing import INDEX, WHOLE, counted_files, read_headers, weight_files

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def packed(header: Any, data: bytes = b"\0" * 32) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


GOOD = packed({"a": A, "b": B, "__metadata__": {"format": "pt"}})


def test_a_header_is_read(tmp_path):
    (tmp_path / "x").write_bytes(GOOD)
    assert read_header(tmp_path / "x") == {"a": Entry("F32", (2, 3), 0, 24), "b": Entry("BF16", (4,), 24, 32)}


DAMAGED = {
    "a pointer": (POINTER, r"pointer of Git LFS"),
    "a page": (b"<!DOCTYPE html>\n<html></html>", "an HTML page"),
    "a page of the hub": (b"  \n<HTML lang=en>", "an HTML page"),
    "a message": (b"Entry not found", "an error message of a server"),
    "empty": (b"", "an empty file"),
    "blanks": (b" \n" * 8, "an empty file"),
    "a length alone": (b"\x01\0\0", "it has 3 bytes"),
    "a header longer than the file": (struct.pack("<Q", 2**62) + b"{}", f"would have {2**62} bytes"),
    "one byte longer": (struct.pack("<Q", 3) + b"{}", "would have 3 bytes"),
    "no JSON": (packed(b"{nope"), "JSONDecodeError"),
    "a list": (packed([1]), "a list"),
    "deep": (packed(b"[" * 100_000), "RecursionError|JSONDecodeError"),
    "latin-1": (packed('{"ä": 1}'.encode("latin-1")), "UnicodeDecodeError"),
    "twice": (packed(b'{"a": {}, "a": {}}'), "stands twice"),
    "cut": (GOOD[:-1], "behind its header it has 31"),
    "longer": (GOOD + b"\0", "behind its header it has 33"),
    "outside": (packed({"a": {**A, "data_offsets": [40, 64]}}), "begins at byte 40"),
    "overlapping": (packed({"a": A, "b": {**B, "data_offsets": [20, 28]}}), "b begins at byte 20"),
    "a gap": (packed({"a": A, "b": {**B, "data_offsets": [28, 36]}}, b"\0" * 36), "b begins at byte 28"),
    "backwards": (packed({"a": {**A, "data_offsets": [24, 0]}}), "bytes 24 to 0"),
    "negative": (packed({"a": {**A, "data_offsets": [-24, 0]}}), "expected whole numbers"),
    "a fraction": (packed({"a": {**A, "shape": [2.0, 3]}}), "expected whole numbers"),
    "a huge shape": (packed({"a": {**A, "shape": [2**40, 2**40]}}), "has the shape"),
    "another size": (packed({"a": {**A, "shape": [2, 4]}}), r"shape \[2, 4\] in F32"),
    "an unknown format": (packed({"a": {**A, "dtype": "F12"}}), "number format 'F12'"),
    "no format": (packed({"a": {"shape": [1], "data_offsets": [0, 4]}}), "expected dtype, shape"),
    "no tensor": (packed({"a": 3}), "expected dtype, shape"),
    "a zip": (b"PK\x03\x04" + b"\0" * 60, "would have|bytes"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_header_is_refused_without_memory(tmp_path, case):
    content, said = DAMAGED[case]
    (tmp_path / "x.safetensors").write_bytes(content)
    with limits(seconds=20, mebibytes=64), pytest.raises(DamagedCheckpointError, match=said) as raised:
        read_header(tmp_path / "x.safetensors")
    assert "x.safetensors is damaged" in raised.value.message
    assert ("git lfs pull" in raised.value.remedy) == (case == "a pointer")


def sharded(folder: Path) -> None:
    (folder / "one.safetensors").write_bytes(packed({"a": A}, b"\0" * 24))
    (folder / "two.safetensors").write_bytes(packed({"b": {**B, "data_offsets": [0, 8]}}, b"\0" * 8))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def rewritten(**places: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")

    return change


INDEXES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is missing": (lambda f: (f / "two.safetensors").unlink(), "lacks two.safetensors"),
    "a file is a pointer": (lambda f: (f / "two.safetensors").write_bytes(POINTER), "two.safetensors is damaged.*LFS"),
    "the index is a pointer": (lambda f: (f / INDEX).write_bytes(POINTER), "index.json is damaged.*LFS"),
    "the index is a page": (lambda f: (f / INDEX).write_bytes(b"<html>"), "index.json is damaged.*HTML"),
    "a tensor is not in its file": (rewritten(a="two.safetensors", b="two.safetensors"), "safetensors has no tensor a"),
    "a name is no text": (rewritten(a=3), "index.json is damaged"),
    "no map": (lambda f: (f / INDEX).write_text("{}", encoding="utf-8"), "index.json is damaged"),
    "an empty map": (rewritten(), "index.json is damaged"),
    "a map that is a list": (lambda f: (f / INDEX).write_text('{"weight_map": [1]}', encoding="utf-8"), "is damaged"),
    "it leaves the folder": (rewritten(a="../one.safetensors"), "lies in this folder"),
    "weights twice": (lambda f: (f / WHOLE).write_bytes(GOOD), "has its weights twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEXES)
def test_an_index_that_does_not_fit_is_refused(tmp_path, case):
    sharded(tmp_path)
    assert [len(header) for header in read_headers(tmp_path).values()] == [1, 1]
    change, said = INDEXES[case]
    change(tmp_path)
    with pytest.raises(CheckpointError, match=said):
        read_headers(tmp_path)


OTHERS = {
    "pytorch_model.bin": "save_file as save",
    "pytorch_model-00001-of-00002.bin": "safetensors",
    "consolidated.00.pth": "layout of transformers",
    "model.gguf": "gguf_file=model.gguf",
    "flax_model.msgpack": "Flax",
}


@pytest.mark.parametrize("name", OTHERS)
def test_weights_in_another_format_are_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"numbers")
    with pytest.raises(CheckpointError, match=f"another format: {name}") as raised:
        weight_files(tmp_path)
    assert OTHERS[name] in raised.value.remedy
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(CheckpointError, match="pointer of Git LFS"):
        weight_files(tmp_path)
    (tmp_path / WHOLE).write_bytes(GOOD)
    assert weight_files(tmp_path) == [tmp_path / WHOLE], "the other one is not read"


def test_a_folder_within_the_folder_is_named(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / WHOLE).write_bytes(GOOD)
    with pytest.raises(CheckpointError, match="its folder inner has it") as raised:
        weight_files(tmp_path)
    assert str(tmp_path / "inner") in raised.value.remedy


def test_memory_is_counted_from_the_files_that_are_read(tmp_path):
    """Beside them may lie those of another format, or a pointer that nobody asked for."""
    sharded(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(POINTER)
    assert [file.name for file in counted_files(str(tmp_path))] == ["one.safetensors", "two.safetensors"]
    assert counted_files(None) == counted_files(str(tmp_path / "nowhere")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    (tmp_path / "x").write_bytes(GOOD)
    (tmp_path / "x").chmod(0)
    with pytest.raises(CheckpointError, match="may not be read") as raised:
        read_header(tmp_path / "x")
    assert "chmod u+r" in raised.value.remedy


def test_a_file_without_the_right_to_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(GOOD)

    def refused(self: Path, *args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CheckpointError, match="may not be read"):
        read_header(tmp_path / "x")


def test_a_file_that_is_read_only_is_read(tmp_path):
    (tmp_path / "x").write_bytes(GOOD)
    (tmp_path / "x").chmod(0o444)
    assert len(read_header(tmp_path / "x")) == 2
