"""The environments that tests make for packages of others."""

from __future__ import annotations

import time
from pathlib import Path

import environments
import pytest


def test_what_hangs_or_fails_skips_its_test_and_says_what_was_being_installed(tmp_path, monkeypatch):
    began = time.monotonic()
    with pytest.raises(pytest.skip.Exception, match=r"installing far-away did not end within 0.2 s"):
        environments.limited(["sleep", "60"], "installing far-away", 0.2)
    assert time.monotonic() - began < 20.0
    with pytest.raises(pytest.skip.Exception, match=r"installing broken cannot be done here: no such package"):
        environments.limited(["sh", "-c", "echo no such package >&2; exit 1"], "installing broken", 20.0)


def test_an_environment_is_made_once_for_what_it_has(tmp_path, monkeypatch):
    done: list[str] = []
    monkeypatch.setattr(environments, "limited", lambda command, doing, seconds: done.append(doing))
    folder = tmp_path / "env"
    (folder / "lib/python3/site-packages").mkdir(parents=True)
    for packages in (["one", "two==2"], ["one", "two==2"], ["one", "two==3"]):
        found = environments.python_with(packages, folder, shares=True)
        assert found == str(folder / "bin" / "python")
    named = ("one two==2", "one two==3")
    assert done == [f"{doing}{one}" for one in named for doing in ("making an environment for ", "installing ")]
    (shared,) = folder.rglob("shared.pth")
    assert Path(shared.read_text().strip()).is_dir()
