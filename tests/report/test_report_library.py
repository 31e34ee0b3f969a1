"""The charting library: bundled once, kept, and named where it is missing."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from reported_runs import write_run

from embodied.errors import AssetsMissingError, ConfigError
from embodied.report import library
from embodied.tools import report


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "version", lambda distribution: "1.9.0")
    return tmp_path / "cache" / "embodied" / "report"


def test_without_the_extra_its_name_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(distribution: str) -> str:
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr(library, "version", missing)
    folder = write_run(tmp_path / "a")
    assert report.main([str(folder)]) == 2
    assert "fix: pip install 'embodied-rl[report]'" in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_it_is_bundled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0, b"'</script><!--'" + b";" * 200_000, b"")

    monkeypatch.setattr(library.subprocess, "run", run)
    first = library.javascript()
    assert first.startswith("'<\\/script><\\!--'")
    assert library.javascript() == first
    assert len(calls) == 1
    assert [file.name for file in cache.iterdir()] == ["vega-1.9.0.js"]
    (cache / "vega-1.9.0.js").write_text("cut off", encoding="utf-8")
    assert library.javascript() == first


@pytest.mark.parametrize(("status", "out"), [(1, b""), (0, b"too short")])
def test_a_bundle_that_fails_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch, status: int, out: bytes) -> None:
    done = subprocess.CompletedProcess([], status, out, b"Traceback\nImportError: no V8 here")
    monkeypatch.setattr(library.subprocess, "run", lambda *arguments, **options: done)
    with pytest.raises(ConfigError, match="no V8 here"):
        library.javascript()
    assert list(cache.iterdir()) == []


def test_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert")
    script = library.javascript()
    assert 500_000 < len(script) < 2_000_000
    assert "vegaEmbed" in script
    assert "</script" not in script


def test_without_a_cache_it_is_made_each_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0, b";" * 200_000, b"")
    monkeypatch.setattr(library.subprocess, "run", lambda *arguments, **options: done)

    def none(name: str) -> Path:
        raise AssetsMissingError("no writable cache folder", "set XDG_CACHE_HOME")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("embodied.lib.whole.os.fsync", full)
        assert library.javascript() == ";" * 200_000
    assert list(cache.iterdir()) == []
    monkeypatch.setattr(library, "cache_folder", none)
    assert library.javascript() == ";" * 200_000
