"""What tests of ``embodied.tools.compare`` share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied.tools import compare

Found = dict[str, Any]
"""An evaluation's file, or a comparison as JSON."""


def read(name: str) -> Found:
    return json.loads(Path("runs", name, "eval", "000000.json").read_text(encoding="utf-8"))


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Found]:
    assert compare.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["comparisons"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert compare.main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "\n  fix: " in said.err
    return said.err


def below(share: int) -> Callable[[int, int], bool]:
    return lambda task, k: k < share


def changed(section: str, key: str, value: Any) -> Callable[[Found], object]:
    return lambda found: found[section].__setitem__(key, value)


def without(*keys: str) -> Callable[[Found], object]:
    return lambda found: [found.pop(key) for key in keys]
