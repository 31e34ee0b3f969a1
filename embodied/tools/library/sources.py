"""Where a key stands: the YAML files that set it, and the argument that it is of the class behind a ``_target_``."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import embodied
import embodied.config
from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of, load_target

MOST = 4
"""Files that are named for a value at most."""
VALUES, WIDTH = 8, 100
"""Values that are told at most, and characters of one."""
GROUPS = {"env.train": "env", "env.eval": "env", "actor.model": "model"}
"""Section → the group whose files name its classes."""
_PACKAGES = {
    "env": ("env.train", "env.eval"),
    "perturb": ("env.train.perturb", "env.eval.perturb"),
}
"""Group → where the keys of its files stand. Others say it in their first line, or stand under the group's name."""


@dataclass(frozen=True)
class Argument:
    """A keyword argument of an env's or a model's class, with its meaning and default."""

    name: str
    target: str  # dotted path of the class or function
    meaning: str
    default: str
    file: str  # file with the value


def settings(key: str, target: str | None = None) -> list[str]:
    """Lists, as lines of text, the YAML files that set a key, and to what.

    Args:
        target: of a key that is an argument of this class: files that name another are left out.

    >>> settings("runner.logger.report")
    ['set to false by config/tracker/jsonl.yaml']
    """
    found: dict[str, list[str]] = {}
    contents = {file: content for file, _, content in _files()}
    for file, packages, content in _files():
        for path, value in _paths(content) if target is None or _target(file, contents) in (None, target) else ():
            if path == f"sets.{key}" or key in (f"{package}.{path}".lstrip(".") for package in packages):
                found.setdefault(json.dumps(value, ensure_ascii=False), []).append(relative(file))
    lines = []
    for value, files in [*found.items()][:VALUES]:
        more = f" and {len(files) - MOST} more" if len(files) > MOST else ""
        shown = value if len(value) <= WIDTH else f"{value[:WIDTH]}…"
        lines.append(f"set to {shown} by {', '.join(files[:MOST])}{more}")
    return [*lines, f"and to {len(found) - VALUES} other values"] if len(found) > VALUES else lines


def arguments(section: str) -> Iterator[Argument]:
    """Yields the arguments of all classes that the YAML files of a section's group name."""
    named = [content.get("_target_") for file, _, content in _files() if file.parent.name == GROUPS[section]]
    for target in sorted({name for name in named if isinstance(name, str)}):
        try:
            made = load_target(target, f"{section}._target_")
        except ConfigError:  # a simulator that is not installed here
            continue
        for name, parameter in arguments_of(target, f"{section}._target_").named.items():
            place, meaning = _told(made, name)
            yield Argument(name, target, meaning, _default(made, name, parameter.default), place)


def relative(file: str | Path) -> str:
    """Returns a file's path within the package, or within the checkout."""
    root = Path(embodied.__path__[0]).parent
    return str(Path(file).resolve().relative_to(root.resolve()))


@dataclass(frozen=True)
class Choice:
    """A YAML file of a configuration group, chosen by ``GROUP=NAME``."""

    name: str  # GROUP=NAME of the command line
    meaning: tuple[str, ...]  # paragraphs, and lines of commands, which are indented
    file: str


def choices_called(name: str) -> list[Choice]:
    """Lists the group files called ``name``.

    >>> [choice.name for choice in choices_called("ppo")]
    ['algorithm=ppo']
    """
    roots = [Path(root) for root in embodied.config.__path__]
    files = [file for root in roots for file in sorted(root.glob("*/*.yaml")) if file.stem == name]
    return [Choice(f"{file.parent.name}={name}", _first_comment(file), relative(file)) for file in files]


def _first_comment(file: Path) -> tuple[str, ...]:
    """Reads a file's first comment: its paragraphs, each joined to one line, and its commands as they are."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("# @package")]
    comment = [line[1:].removeprefix(" ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines)]
    said: list[str] = []
    for is_command, group in itertools.groupby(comment, lambda line: line.startswith(" ")):
        several = list(group)
        said += several if is_command else [" ".join(several)]
    return tuple(said) or ("its keys stand in the file",)


@cache
def _files() -> list[tuple[Path, tuple[str, ...], dict[str, Any]]]:
    """Returns the YAML files of the configuration, where their keys stand, and what is in them."""
    found = list[tuple[Path, tuple[str, ...], dict[str, Any]]]()
    for root in embodied.config.__path__:
        for file in sorted(Path(root).rglob("*.yaml")):
            text = file.read_text(encoding="utf-8")
            said = re.match(r"# @package (\S+)", text)
            group = "" if file.parent == Path(root) else file.parent.name
            packages = (said[1].replace("_global_", ""),) if said else _PACKAGES.get(group, (group,))
            found.append((file, packages, yaml.safe_load(text) or {}))
    return found


def _target(file: Path, contents: Mapping[Path, dict[str, Any]]) -> str | None:
    """Returns the class that a file names, or one that it begins with."""
    content = contents.get(file, {})
    others = [one for one in content.get("defaults", ()) if isinstance(one, str) and one != "_self_"]
    found = (_target(file.with_name(f"{one}.yaml"), contents) for one in others)
    return content.get("_target_") or next(filter(None, found), None)


def _paths(content: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if not before and name == "defaults":
            continue
        yield f"{before}{name}", value
        if isinstance(value, dict):
            yield from _paths(value, f"{before}{name}.")


def _told(made: Callable[..., Any], name: str) -> tuple[str, str]:
    """Returns the file that says what an argument is, and what it says: a docstring, or the comment at a field."""
    for one in getattr(made, "__mro__", (made,)):
        if text := _of_docstring(inspect.getdoc(one) or "", name):
            return relative(inspect.getfile(one)), text
    for one in _dataclasses(made):
        if name in {field.name for field in fields(one)}:
            return relative(inspect.getfile(one)), _of_comment(_source(one), name)
    return relative(inspect.getfile(made)), ""


@cache
def _source(kind: type) -> str:
    """Returns the source of a class. Finding it takes tenths of a second, and each of its fields asks for it."""
    return inspect.getsource(kind)


def _of_docstring(text: str, name: str) -> str:
    """Finds what ``Args:`` says of an argument.

    >>> _of_docstring("Does.\\n\\nArgs:\\n    a: one\\n        line.\\n    b, c: two.\\n\\nRaises:\\n    a: no.", "a")
    'one line.'
    """
    block = re.search(r"^Args:\n((?:[ ]{4}.*\n?|\n)+)", text, re.MULTILINE)
    for entry in re.split(r"\n(?= {4}\S)", "\n" + block[1]) if block else ():
        names, _, said = entry.strip().partition(": ")
        if name in names.split(", "):
            return " ".join(said.split()).replace("``", "")
    return ""


def _of_comment(source: str, name: str) -> str:
    """Finds the comment behind a field of a class, and the one above it."""
    lines = source.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(f"    {name}:"))
    more = itertools.takewhile(lambda line: not re.match(r" {4}[\w#@]", line), lines[place + 1 :])
    said = [line.partition("  # ")[2] for line in (lines[place], *more)]
    while (above := lines[place - 1].strip()).startswith("#"):
        said.insert(0, above.lstrip("# "))
        place -= 1
    return " ".join(filter(None, said)).replace("``", "")


def _dataclasses(made: Callable[..., Any]) -> list[type]:
    """Returns the classes of settings that stand beside a function which takes their fields as arguments."""
    beside = vars(sys.modules[made.__module__]).values()
    return [one for one in beside if isinstance(one, type) and is_dataclass(one)]


def _default(made: Callable[..., Any], name: str, given: Any) -> str:
    if given is inspect.Parameter.empty:
        return "none; it has to be given"
    for one in (field for kind in _dataclasses(made) for field in fields(kind) if field.name == name):
        said = one.default_factory() if one.default_factory is not MISSING else one.default
        given = given if said is MISSING else said
    return json.dumps(given, ensure_ascii=False, default=_named)


def _named(value: Any) -> str:
    """A value that JSON does not have: as it shows itself, unless that is a place in memory."""
    shown = str(value)
    return shown if " at 0x" not in shown else getattr(value, "__qualname__", type(value).__qualname__)
