"""Checksums of files that come from elsewhere."""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path

import pytest

from embodied.errors import DamagedCheckpointError
from embodied.lib import files


def test_the_same_bytes_are_read_once_and_other_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read = []

    def counted(piece: bytes, value: int = 0) -> int:
        read.append(len(piece))
        return crc32(piece, value)

    crc32 = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", counted)
    file = tmp_path / "weights"
    file.write_bytes(b"x" * 1000)
    noted = files.checksums(tmp_path, ["weights"])
    files.check_checksums(tmp_path, noted)
    assert read == [1000, 1000], "it was written just now: a change in the same tick of the clock would not be seen"
    monkeypatch.setattr(files, "RESTED_NS", 0)
    for _ in range(3):
        files.check_checksums(tmp_path, noted)
    assert read == [1000] * 3
    before = file.stat()
    time.sleep(0.05)  # some ticks
    file.write_bytes(b"y" * 1000)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # what a copying program may do
    with pytest.raises(DamagedCheckpointError, match=r"weights is damaged: it has 1000 bytes, crc32 \w+, expected"):
        files.check_checksums(tmp_path, noted)
    assert read == [1000] * 4


def test_an_edited_file_of_an_export_is_refused_with_what_takes_the_edit(tmp_path: Path):
    tokenizer, facts = tmp_path / "tokenizer_config.json", tmp_path / files.EXPORT_FILE
    tokenizer.write_text("{}", encoding="utf-8")
    facts.write_text(json.dumps(files.sealed({"files": files.checksums(tmp_path, [tokenizer.name])})), encoding="utf-8")
    tokenizer.write_text('{"chat_template": "…"}', encoding="utf-8")
    with pytest.raises(DamagedCheckpointError) as raised:
        files.check_export(tmp_path)
    assert f"remove its entry from 'files', and the line 'checksum', in {facts}" in raised.value.remedy
    facts.write_text('{"files": {}}', encoding="utf-8")
    assert files.check_export(tmp_path) == {"files": {}}


def test_no_cut_file_passes_for_one_without_a_checksum(tmp_path: Path):
    file, values = tmp_path / "meta.json", {"format": 3, "files": {"weights": "8 bytes"}, "steps": [1, 2]}
    for indent in (None, 1):
        text = json.dumps(files.sealed(values), indent=indent)
        for end in range(len(text)):
            file.write_text(text[:end], encoding="utf-8")
            with pytest.raises(DamagedCheckpointError, match="is damaged"):
                files.check_seal(file, files.read_json(file))
        file.write_text(text, encoding="utf-8")
        assert files.check_seal(file, files.read_json(file)) == values
    file.write_text(json.dumps(values), encoding="utf-8")
    assert files.check_seal(file, files.read_json(file)) == values, "as an older version wrote it"
