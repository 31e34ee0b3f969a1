"""Recipes in the layout of each system's files (``recipes/SYSTEM``), against what they say written by hand.

``NAME.wants.yaml`` beside a recipe: ``groups``, keys that stay ``open``, ``settings`` (null = left out), and keys that
the report asks to ``look`` at. The order of a recipe's keys changes nothing.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied.migrate import SYSTEMS, Migration, migrate, translate
from embodied.migrate.report import to_do
from embodied.tools import migrate as tool

HERE = Path(__file__).parent
WANTED = sorted((HERE / "recipes").glob("*/*.wants.yaml"))
SHUFFLES = 10
LEAST = 8
"""Recipes of a system at least."""
ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1), "solutions": [str(n + 1)]} for n in range(40)]
CHAT = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
OLDER = {
    "rlinf_libero_10.yaml": "rlinf", "rlinf_math.yaml": "rlinf", "rlinf_reference_math.yaml": "rlinf",
    "rlinf_reference_older.yaml": "rlinf", "rlinf_reference_embodied.yaml": "rlinf", "verl_math.sh": "verl",
    "simplevla_libero.sh": "verl", "verl_reference.yaml": "verl", "roll_math.yaml": "roll",
    "roll_reference.yaml": "roll", "cosmos_math.toml": "cosmos-rl", "cosmos_vla.toml": "cosmos-rl",
    "cosmos_reference.toml": "cosmos-rl",
}  # fmt: skip


def recipe_of(wanted: Path) -> tuple[Path, str]:
    """The recipe that a file of wants is of, and its system."""
    name = wanted.name.removesuffix(".wants.yaml")
    (file,) = [one for one in wanted.parent.glob(f"{name}.*") if one != wanted]
    return file, wanted.parent.name


def theirs() -> list[tuple[Path, str]]:
    return [*map(recipe_of, WANTED), *((HERE / name, system) for name, system in OLDER.items())]


def shuffled(value: Any, order: random.Random) -> Any:
    """A mapping with its keys in another order, all the way down."""
    if not isinstance(value, Mapping):
        return value
    names = list(value)
    order.shuffle(names)
    return {name: shuffled(value[name], order) for name in names}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files of problems that recipes name."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "test"):
        lines = "".join(f"{json.dumps({**row, 'messages': CHAT})}\n" for row in ROWS)
        Path(f"{name}.jsonl").write_text(lines, encoding="utf-8")


@pytest.mark.parametrize("wanted", WANTED, ids=lambda one: f"{one.parent.name}-{one.name.removesuffix('.wants.yaml')}")
def test_a_recipe_says_here_what_it_says_there(wanted, data):
    file, system = recipe_of(wanted)
    wants = yaml.safe_load(wanted.read_text(encoding="utf-8"))
    found = migrate(tool.read(file), system, devices=0)
    assert sorted(found.open) == sorted(wants.get("open", [])), found.open
    groups = wants.get("groups", {})
    assert {name: found.groups.get(name) for name in groups} == groups
    settings = wants["settings"]
    assert {key: found.settings.get(key) for key in settings} == settings
    look = "\n".join(to_do(found, system))
    assert [key for key in wants.get("look", []) if f"  {key} = " not in look] == []
    assert found.remaining == ""


def test_there_are_enough_recipes_of_every_system():
    counts = Counter(system for _, system in map(recipe_of, WANTED))
    assert {system: counts[system] >= LEAST for system in SYSTEMS} == dict.fromkeys(SYSTEMS, True)


@pytest.mark.parametrize(("file", "system"), theirs(), ids=lambda one: getattr(one, "stem", one))
def test_the_order_of_keys_changes_nothing(file, system, data, monkeypatch):
    """The trial is left out: it takes what is compared here."""
    monkeypatch.setattr(translate, "attempt", lambda *given: None)

    def told(mapping: Mapping[str, Any]) -> Migration:
        found = migrate(mapping, system)
        return Migration(found.groups, dict(found.settings), found.notes, dict(found.open))

    mapping = tool.read(file)
    first, order = told(mapping), random.Random(0)
    assert first.settings
    for _ in range(SHUFFLES):
        other = told(shuffled(mapping, order))
        assert other == first
        assert other.as_yaml() == first.as_yaml()
