"""Text is UTF-8 in every file and pipe: every call that opens one says so.

Ruff's PLW1514 does not see untyped names, and its preview changes other rules.
"""

from __future__ import annotations

import ast
import codecs
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("embodied", "envs", "models", "benchmarks", "examples", "tests")
TEXT_BY_DEFAULT = ("open", "fdopen")
MODE = re.compile(r"[rwaxtb+]{1,3}")
TEXT_IF_TOLD = {"NamedTemporaryFile": 0, "TemporaryFile": 0, "SpooledTemporaryFile": 1}
PROCESSES = {"run", "Popen", "check_output", "check_call", "call", "getoutput"}
BINARY_OPENERS = {"tarfile", "zipfile", "gzip", "lzma", "bz2", "Image", "imageio", "webbrowser", "wave", "av", "h5py"}
"""Modules whose ``open`` reads bytes unless a mode has a ``t``."""
GIVES_BYTES = {("formats.py", "self._file.open()"), ("formats.py", "file.open()")}
"""Methods of ours: ``embodied.rows.files.SourceFile.open``."""


def without_encoding(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open text without saying its encoding."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _opens_text(node) and not _says(node):
            yield node


def _opens_text(call: ast.Call) -> bool:
    name = _name(call.func)
    if name in ("read_text", "write_text"):
        return True
    if name in TEXT_BY_DEFAULT:
        return _opens(call, name)
    if name in TEXT_IF_TOLD:
        mode = _mode(call, TEXT_IF_TOLD[name])
        return mode is not None and "b" not in mode
    told = any(word.arg in ("text", "universal_newlines") and not _is_false(word.value) for word in call.keywords)
    return name in PROCESSES and told


def _opens(call: ast.Call, name: str) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    of = owner.id if isinstance(owner, ast.Name) else ""
    if owner is None or of in ("io", "codecs", "builtins") or name == "fdopen":
        mode = _mode(call, 1)
        return mode is None or "b" not in mode
    if of == "os":
        return False
    if of in BINARY_OPENERS:
        mode = _mode(call, 1)
        return mode is not None and "t" in mode
    mode = _mode(call, 0)  # of a Path, or another method of this name
    if mode is None:
        return not call.args and not call.keywords and _is_path(owner)
    return bool(MODE.fullmatch(mode)) and "b" not in mode


def _is_path(owner: ast.expr) -> bool:
    """Whether an expression is a path by its looks."""
    text = ast.unparse(owner)
    return isinstance(owner, ast.BinOp) or "Path(" in text or bool(re.search(r"(path|file)s?$", text, re.IGNORECASE))


def _mode(call: ast.Call, position: int) -> str | None:
    given = next((word.value for word in call.keywords if word.arg == "mode"), None)
    if given is None and len(call.args) > position:
        given = call.args[position]
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _says(call: ast.Call) -> bool:
    if any(word.arg in ("encoding", None) for word in call.keywords):  # None: **arguments
        return True
    name = _name(call.func)
    at = {"read_text": 0, "write_text": 1, "open": 3}.get(name, 99)
    return len(call.args) > at


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def programs(tree: ast.AST) -> Iterator[ast.AST]:
    """The code that stands in texts: what a program starts with ``python -c``, or writes into a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            try:
                yield ast.parse(node.value)
            except SyntaxError:
                continue


def sources() -> list[Path]:
    return sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_is_opened_with_its_encoding(folder):
    found = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        calls = [call for one in (tree, *programs(tree)) for call in without_encoding(one)]
        calls = [call for call in calls if (file.name, ast.unparse(call)) not in GIVES_BYTES]
        found += [f"{file.relative_to(ROOT)}:{call.lineno} {ast.unparse(call)[:80]}" for call in calls]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "path.read_text()", "Path('a').write_text(text)", "open(path)", "open(path, 'w')", "path.open()",
        "given.open('w')", "(folder / 'a').open()", "self._file.open()",
        "open(path, mode='a')", "os.fdopen(fd)", "os.fdopen(fd, 'w')", "io.open(path)", "NamedTemporaryFile('w')",
        "tempfile.NamedTemporaryFile(mode='w+')", "subprocess.run(words, text=True)", "gzip.open(path, 'rt')",
        "subprocess.Popen(words, universal_newlines=True)", "check_output(words, text=is_text)",
    ],
)  # fmt: skip
def test_the_rule_finds_what_it_is_for(code):
    assert len([*without_encoding(ast.parse(code))]) == 1
    assert len([*without_encoding(next(programs(ast.parse(repr(f"import io\n{code}")))))]) == 1


@pytest.mark.parametrize(
    "code",
    [
        "path.read_text(encoding='utf-8')", "path.read_text('utf-8')", "open(path, 'rb')", "path.open('wb')",
        "open(path, 'w', encoding='utf-8')", "os.open(path, flags)", "os.fdopen(fd, 'rb')", "Image.open(path)",
        "NamedTemporaryFile()", "NamedTemporaryFile('wb')", "subprocess.run(words)", "tarfile.open(path)",
        "subprocess.run(words, text=True, encoding='utf-8')", "open(path, **how)", "subprocess.run(words, text=False)",
        "simulators.open()", "log.open('ab' if again else 'wb')", "RunFolder.open(path, resolved)",
    ],
)  # fmt: skip
def test_the_rule_lets_the_others_be(code):
    assert [*without_encoding(ast.parse(code))] == []


def test_no_source_begins_with_a_mark_of_its_encoding():
    assert [file for file in sources() if file.read_bytes().startswith(codecs.BOM_UTF8)] == []
