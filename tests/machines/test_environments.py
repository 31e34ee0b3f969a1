"""The environments that tests make for packages of others."""

from __future__ import annotations

import time
from pathlib import Path

import environments
import pytest


def test_what_hangs_fails_its_test_and_says_what_was_being_done():
    began = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match=r"installing far-away did not end within 0.2 s"):
        environments.limited(["sleep", "60"], "installing far-away", 0.2)
    assert time.monotonic() - began < 20.0


@pytest.mark.parametrize(
    ("broken", "raised", "said"),
    [
        ("install", pytest.skip.Exception, "installing one cannot be done here: no such package"),
        ("venv", AssertionError, "no such package"),
        ("uninstall", AssertionError, "no such package"),
    ],
)
def test_only_packages_that_are_not_to_be_had_skip(broken, raised, said, tmp_path, monkeypatch):
    run = environments.limited

    def limited(command, doing, seconds):
        if broken in map(str, command):
            return run(["sh", "-c", "echo no such package >&2; exit 1"], doing, seconds)
        return ""

    monkeypatch.setattr(environments, "limited", limited)
    with pytest.raises(raised, match=said):
        environments.python_with(["one"], tmp_path, without=["two"])


def test_an_environment_is_made_once_for_what_it_has(tmp_path, monkeypatch):
    done: list[str] = []
    monkeypatch.setattr(environments, "limited", lambda command, doing, seconds: done.append(doing) or "")
    folder = tmp_path / "env"
    (folder / "lib/python3/site-packages").mkdir(parents=True)
    for packages in (["one", "two==2"], ["one", "two==2"], ["one", "two==3"]):
        found = environments.python_with(packages, folder, shares=True)
        assert found == str(folder / "bin" / "python")
    named = ("one two==2", "one two==3")
    assert done == [f"{doing}{one}" for one in named for doing in ("making an environment for ", "installing ")]
    (shared,) = folder.rglob("shared.pth")
    assert Path(shared.read_text(encoding="utf-8").strip()).is_dir()
