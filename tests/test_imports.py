"""The direction of imports (docs/architecture.md): what lets anyone add a simulator or a network with one file."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Container, Iterator, Sequence
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "embodied"

LAYERS = {
    "errors": -2, "perturbations": -2, "sampling": -2, "client": -1, "types": -1, "random": -1, "lib": 0,
    "instructions": 1, "logprobs": 1, "protocols": 1, "rows": 1, "weights": 1,
    "algorithms": 2, "schema": 2, "observe": 2, "data": 2,
    "parallel": 3,
    "runtime": 4, "learn": 4, "evaluation": 4,
    "cluster": 5,
    "run": 6, "testing": 6, "serving": 6,
    "export": 7, "doctor": 7, "report": 7, "selftest": 7, "migrate": 7, "cli": 7, "__main__": 8,
    "tools": 8, "train": 8, "eval": 8, "sft": 8,
}  # fmt: skip
"""A part may import parts of lower layers alone. ``parallel`` lies below ``learn``, which needs its collectives, and
below ``runtime``, whose stop signal its barrier takes as an argument."""


def part(path: Path) -> str:
    """``embodied/runtime/pool/pool.py`` → runtime."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def imported(path: Path, package: str) -> Iterator[str]:
    """Absolute names of all modules that a file imports, wherever in it; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


def on_the_path() -> list[Path]:
    """Folders of tests whose modules pytest imports by their plain names, and those of helpers."""
    tests = ROOT / "tests"
    return [tests / "helpers", *sorted({path.parent for path in tests.rglob("test_*.py")})]


def test_no_two_modules_of_tests_have_one_name():
    """They are imported by name: the second of one name is not found."""
    names = [path.stem for folder in on_the_path() for path in folder.glob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_tests_import_from_their_own_folders_and_the_helpers():
    """A module of a sibling's folder is found only after a test of that folder was collected."""
    folders = on_the_path()
    lost = []
    for path in chain.from_iterable(folder.glob("*.py") for folder in folders):
        near = {path.parent, *path.parents, ROOT / "tests" / "helpers"}
        code = path.read_text(encoding="utf-8")
        for name in {name.split(".")[0] for name in imported(path, "")}:
            homes = {folder for folder in folders if (folder / f"{name}.py").exists()}
            if homes and not homes & near and f'"{min(homes).name}"' not in code:  # puts that folder on the path itself
                lost.append(f"{path.relative_to(ROOT)}: {name}")
    assert lost == []


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
        "from embodied import run\ndef f():\n    import embodied.envs.libero\n    from ..learn import batch\n",
        encoding="utf-8",
    )
    assert parts_used(file) == {"run", "envs", "learn"}


ADAPTERS = [*modules(ROOT / "envs"), *modules(ROOT / "models")]
VOCABULARY = (
    "types", "protocols", "errors", "random", "instructions", "logprobs", "lib", "rows", "weights",
    "client",  # the wire of policy servers, for models/served: imports numpy and errors alone
)  # fmt: skip


def strangers(path: Path) -> list[str]:
    """What an adapter imports of ours beside the vocabulary, its own room and ``shared``; it may import none of it."""
    kind, *inner = path.relative_to(ROOT).parts
    rooms = [f"embodied.{kind}.shared", *(f"embodied.{kind}.{room}" for room in inner[:-1][:1])]
    allowed = tuple(f"{name}." for name in (*(f"embodied.{part}" for part in VOCABULARY), *rooms))
    ours = ("embodied", "envs", "models", "config")
    names = imported(path, ".".join(("embodied", kind, *inner[:-1])))
    return [name for name in names if name.split(".")[0] in ours and not f"{name}.".startswith(allowed)]


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_envs_and_models_import_only_the_contracts(path):
    assert strangers(path) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("envs/libero/env.py", "from embodied.runtime import plan"),
        ("envs/libero/env.py", "from ..maniskill.facts import TaskFacts"),
        ("envs/maniskill/env.py", "import embodied.envs.libero"),
        ("envs/shared/machine.py", "from ..libero import files"),
        ("envs/_template.py", "from .libero import LiberoEnv"),
        ("envs/libero/env.py", "from embodied.models.shared import lora"),
        ("models/shared/lora.py", "from ..openvla_oft.network.config import N_BINS"),
        ("models/causal_lm/policy.py", "from ..openvla_oft.sampling import draw"),
        ("models/openvla_oft/policy.py", "from models.shared import lora"),
    ],
)
def test_a_room_that_reaches_into_another_is_found(tmp_path, monkeypatch, file, line):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    fine = "import numpy\nfrom embodied.types import Start\n"
    own = "from . import own\nfrom ..shared import machine\n" if len(Path(file).parts) > 2 else ""
    path.write_text(fine + own, encoding="utf-8")
    assert strangers(path) == []
    path.write_text(f"{fine}{own}def late():\n    {line}\n", encoding="utf-8")
    assert len(strangers(path)) == 1


def test_there_are_adapters():
    assert {path.relative_to(ROOT).parts[0] for path in ADAPTERS} == {"envs", "models"}


def circle(roots: Sequence[Path]) -> list[str]:
    """Modules below ``roots`` that import each other in a circle, wherever in them; empty if there is none.

    Imports for annotations alone (``if TYPE_CHECKING:``) count: who is given a whole object knows it.
    """
    files = {module_name(path): path for root in roots for path in modules(root)}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = (known_part(used, files) for used in imported(path, package))
        graph[name] = {used for used in found if used}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def module_name(path: Path) -> str:
    """``envs/libero/env.py`` → embodied.envs.libero.env."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    inside = parts if parts[0] == "embodied" else ("embodied", *parts)
    return ".".join(inside[:-1] if inside[-1] == "__init__" else inside)


def known_part(name: str, known: Container[str]) -> str | None:
    """The longest beginning of a dotted name that is a module."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


WITHOUT_CIRCLES = ["embodied", "envs", "models"]


@pytest.mark.parametrize("root", WITHOUT_CIRCLES)
def test_no_module_imports_itself_in_a_circle(root):
    assert circle([ROOT / root]) == []


def test_circles_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    room = tmp_path / "models" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text("from .policy import Policy\n", encoding="utf-8")
    (room / "policy.py").write_text("def save():\n    from . import files\n    files.write()\n", encoding="utf-8")
    (room / "files.py").write_text("from typing import TYPE_CHECKING\n", encoding="utf-8")
    assert circle([tmp_path / "models"]) == []
    (room / "files.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .policy import Policy\n", encoding="utf-8"
    )
    assert set(circle([tmp_path / "models"])) == {"embodied.models.room.policy", "embodied.models.room.files"}
    (room / "files.py").write_text(
        "def read():\n    from embodied.models.room.policy import Policy\n", encoding="utf-8"
    )
    assert set(circle([tmp_path / "models"])) == {"embodied.models.room.policy", "embodied.models.room.files"}
    (room / "files.py").write_text("from embodied.models.room import Policy\n", encoding="utf-8")
    assert "embodied.models.room" in circle([tmp_path / "models"])


@pytest.mark.parametrize(
    "module",
    [
        "embodied.runtime.worker.worker",
        "embodied.runtime.pool.pool",
        "embodied.testing",
        "embodied.schema.compose.compose",
        "embodied.run.build.preflight",
        "embodied.train",
        "embodied.tools.demos",
        "embodied.tools.report",
    ],
)
def test_light_modules_load_neither_torch_nor_transformers(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout == "[]\n"


def test_a_fake_env_steps_without_torch():
    code = (
        "import sys, numpy as np; from embodied.testing import FakeEnv, check_env; check_env(FakeEnv());"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "usage: python -m embodied.train"),
        (["env=libero_10", "runner.epochs=3"], 2, "unknown key 'runner.epochs'"),
    ],
)
def test_help_and_a_refused_key_do_not_wait_for_torch(arguments, status, said):
    """Help waits for numpy neither; a refused key has the env's class asked for its own keys."""
    code = (
        "import sys; from embodied import train\n"
        "try: status = train.main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code\n"
        "print(status, [name for name in ('torch', 'mujoco', 'numpy') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert said in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == f"{status} {['numpy'] if status else []}"
