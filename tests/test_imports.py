"""The direction of imports (docs/architecture.md): what lets anyone add a simulator or a network with one file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "embodied"

LAYERS = {
    "types": 0, "errors": 0, "random": 0,
    "protocols": 1, "targets": 1, "distributed": 1, "spec_json": 1,
    "algorithms": 2, "schema": 2, "observe": 2, "testing": 2, "data": 2,
    "runtime": 3, "learn": 3,
    "compose": 4, "run_folder": 4,
    "checks": 5,
    "collector": 6,
    "build": 7, "watching": 7, "conditions": 7, "meeting": 7, "device_memory": 7, "evaluation": 7, "summary": 7,
    "loop": 7, "rounds": 7, "cloning": 7,
    "train": 8, "eval": 8, "sft": 8, "tools": 8,
}  # fmt: skip
"""A part may import parts of lower layers, and of its own layer only in the layer of the loop and of the entries."""

SHARED_LAYERS = (0, 4, 7, 8)


def part(path: Path) -> str:
    """``embodied/runtime/pool.py`` → runtime."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported(path: Path, package: str) -> Iterator[str]:
    """Absolute names of all modules that a file imports, wherever in it; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            prefix = ".".join(filter(None, (base, node.module)))
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def parts_used(path: Path) -> set[str]:
    package = ".".join(path.relative_to(ROOT).parts[:-1])
    names = [name.split(".") for name in imported(path, package)]
    return {name[1] for name in names if name[0] == "embodied" and len(name) > 1 and name[1] in LAYERS | NOT_RUNTIME}


NOT_RUNTIME = {"envs": 99, "models": 99}


def test_every_part_has_a_layer():
    parts = {part(path) for path in modules(PACKAGE)} - {"__init__"}
    assert parts <= set(LAYERS)
    assert len(parts) > 10


@pytest.mark.parametrize("path", modules(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = part(path)
    if own == "__init__":
        assert parts_used(path) == set()
        return
    layer = LAYERS[own]
    upward = {
        used for used in parts_used(path) - {own} if not (LAYERS | NOT_RUNTIME)[used] < layer + (layer in SHARED_LAYERS)
    }
    assert not upward, f"{own} (layer {layer}) imports {upward}"


def test_the_rule_finds_what_it_is_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "embodied" / "runtime" / "bad.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from embodied import loop\ndef f():\n    import embodied.envs.libero\n    from ..learn import batch\n"
    )
    assert parts_used(file) == {"loop", "envs", "learn"}


ADAPTERS = [*modules(ROOT / "envs"), *modules(ROOT / "models")]


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_envs_and_models_import_only_the_contracts(path):
    package = ".".join(("embodied", *path.relative_to(ROOT).parts[:-1]))
    own = package if path.parent.parent != ROOT else ".".join(package.split(".")[:2])
    names = [name for name in imported(path, package) if name.split(".")[0] in ("embodied", "envs", "models", "config")]
    allowed = ("embodied.protocols.", "embodied.types.", "embodied.errors.", f"{own}.")
    assert [name for name in names if not f"{name}.".startswith(allowed)] == []


def test_there_are_adapters():
    assert {path.relative_to(ROOT).parts[0] for path in ADAPTERS} == {"envs", "models"}


@pytest.mark.parametrize(
    "module",
    [
        "embodied.runtime.worker",
        "embodied.runtime.pool",
        "embodied.testing",
        "embodied.compose",
        "embodied.checks",
        "embodied.build",
        "embodied.train",
    ],
)
def test_light_modules_load_neither_torch_nor_transformers(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_fake_env_steps_without_torch():
    code = (
        "import sys, numpy as np; from embodied.testing import FakeEnv, check_env; check_env(FakeEnv());"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
