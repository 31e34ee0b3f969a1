"""The page for contributors is true: its map has every room, its paths and names exist, its example can be followed."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import Tensor

from embodied.observe.metrics import METRICS
from embodied.schema.others.key_table import keys

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP = dict(re.findall(r"^\| (`.*?|imports.*?|what.*?) \| (.*?) \|$", PAGE, re.MULTILINE))
SHARED = {"helpers", "config", "mutants", "docs"}  # no tests of a room


def folders(place: str) -> set[str]:
    return {path.name for path in (ROOT / place).iterdir() if path.is_dir() and any(path.rglob("*.py"))}


def test_the_map_has_every_room_and_every_folder_of_tests() -> None:
    rooms = {name for row in MAP for name in re.findall(r"`embodied/(\w+)`", row)}
    assert rooms == folders("embodied")
    named = {name for tests in MAP.values() for name in re.findall(r"`tests/(\w+)", tests)}
    assert folders("tests") - SHARED <= named
    assert all(re.findall(r"`tests/\S+`", tests) for tests in MAP.values())


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:embodied|tests|envs|config|docs|benchmarks)/[^`<\s]*)`", PAGE)))
)
def test_what_the_page_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def example(number: int) -> str:
    return dedent(re.findall(r"^    ```python\n(.*?)^    ```$", PAGE, re.MULTILINE | re.DOTALL)[number])


def test_the_example_has_its_places_and_is_not_there_yet() -> None:
    places = re.findall(r"`((?:embodied|tests)/\S+\.py)`,[^`]*?(?:class|table|function|line of)\s+`(\w+)`", PAGE)
    assert len(places) == 4
    for file, name in places:
        assert re.search(rf"(class|def) {name}\b|^{name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    scored = (ROOT / "embodied/learn/score/reward_penalties.py").read_text(encoding="utf-8")
    assert "found += overlong(" in scored
    assert f"    return {example(2).partition(' = ')[2].splitlines()[0]}" in scored, "the line that it replaces"
    assert "reward.overlong_penalty.per_step" not in {key.name for key in keys()}, (
        "it is in the code now: take another example for CONTRIBUTING.md"
    )
    assert not set(METRICS) & set(ast.literal_eval(f"{{{example(3)}}}"))


def test_the_arithmetic_of_the_example() -> None:
    found: dict[str, object] = {"Tensor": Tensor}
    exec(example(1), found)
    assert callable(found["per_step"])
    assert torch.equal(found["per_step"](torch.tensor([4, 8]), 0.25), torch.tensor([-1.0, -2.0], dtype=torch.float64))
