"""The direction of imports (docs/architecture.md): what lets anyone add a simulator or a network with one file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "embodied"

LAYERS = {
    "types": 0, "errors": 0, "random": 0, "targets": 1,
    "protocols": 1,
    "algorithms": 2, "schema": 2, "observe": 2, "data": 2, "testing": 2,
    "parallel": 3,
    "runtime": 4, "learn": 4,
    "run": 5,
    "tools": 6, "train": 6, "eval": 6, "sft": 6,
}  # fmt: skip
"""A part may import parts of lower layers alone. ``parallel`` lies below ``learn``, which needs its collectives, and
below ``runtime``, whose stop signal its barrier takes as an argument."""


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
    upward = {used for used in parts_used(path) - {own} if (LAYERS | NOT_RUNTIME)[used] >= LAYERS[own]}
    assert not upward, f"{own} (layer {LAYERS[own]}) imports {upward}"


def test_the_rule_finds_what_it_is_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "embodied" / "runtime" / "bad.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "from embodied import run\ndef f():\n    import embodied.envs.libero\n    from ..learn import batch\n"
    )
    assert parts_used(file) == {"run", "envs", "learn"}


def graph(root: Path, package: str) -> dict[str, set[str]]:
    """Module → the modules of ``package`` that it imports by name: at its top, inside a function, or for type checking.

    A function's import counts, as it runs sooner or later; one for type checking counts, as a reader follows it. What
    does not count is the package that Python loads before one of its modules.
    """
    files = {dotted(path, root): path for path in modules(root / package)}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        parent = name if path.name == "__init__.py" else name.rpartition(".")[0]
        used = {found if found in files else found.rpartition(".")[0] for found in imported(path, parent)}
        edges[name] = (used & set(files)) - {name}
    return edges


def dotted(path: Path, root: Path) -> str:
    """``embodied/run/rl.py`` → embodied.run.rl, ``embodied/run/__init__.py`` → embodied.run."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules of which each imports the one before it, the first the last; empty if there are none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_module_imports_itself_by_way_of_others():
    edges = graph(ROOT, "embodied")
    assert len(edges) > 100
    assert cycle(edges) == []


def test_a_cycle_is_found_wherever_its_imports_stand(tmp_path):
    for name, text in {
        "__init__": "", "a": "from embodied import b", "b": "def f():\n    from embodied.sub import c\n",
        "sub/__init__": "from embodied.sub import c\n", "sub/c": "if TYPE_CHECKING:\n    from embodied.a import X\n",
    }.items():  # fmt: skip
        file = tmp_path / "embodied" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    edges = graph(tmp_path, "embodied")
    assert edges["embodied.sub"] == {"embodied.sub.c"}, "and c does not count as an importer of its package"
    assert set(cycle(edges)) == {"embodied.a", "embodied.b", "embodied.sub.c"}


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
        "embodied.schema.compose",
        "embodied.run.preflight",
        "embodied.train",
        "embodied.tools.demos",
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


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "usage: python -m embodied.train"),
        (["env=libero_10", "runner.epochs=3"], 2, "unknown key 'runner.epochs'"),
    ],
)
def test_help_and_a_refused_key_do_not_wait_for_torch(arguments, status, said):
    """Nor for numpy, the simulators' side: together they take seconds."""
    code = (
        "import sys; from embodied import train\n"
        "try: status = train.main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code\n"
        "print(status, [name for name in ('torch', 'numpy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert said in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == f"{status} []"
