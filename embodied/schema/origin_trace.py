"""Traces each value of a configuration to the file and line, or the words of the command line, that set it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from yaml.nodes import MappingNode, Node, ScalarNode

import embodied.config
from embodied.lib import hidden
from embodied.schema.groups import GROUPS
from embodied.schema.hydra_files import files_in_order
from embodied.schema.keys.paths import leaves
from embodied.schema.origins import Origin, Origins, Trail
from embodied.schema.short_forms import expand, readable
from embodied.schema.table import keys

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")


def trace(resolved: Mapping[str, Any], trail: Trail) -> Origins:
    """Returns the origin of each value.

    Args:
        resolved: the configuration.
        trail: how it was composed. The files that it names are read again.
    """
    settings = _settings(trail)
    steps = {key: _with_what_was_before(key, step, settings) for key, step in trail.steps.items()}
    classes = {key.name: key.model.__name__ for key in keys()}
    quiet = [key for key in trail.left_out if key in classes]
    found: dict[str, Origin] = {}
    for key, value in leaves("", resolved):
        found[key] = _origin(key, steps, {} if key in quiet else settings) or _of_class(key, classes)
        if isinstance(value, list):
            found |= {one: origin for one, origin in settings.items() if one.startswith(f"{key}.")}
    return Origins(found, {key: _left_out(why, settings.get(key)) for key, why in trail.left_out.items()})


def _with_what_was_before(key: str, step: Origin, settings: Mapping[str, Origin]) -> Origin:
    """The origin of a value that is made of what a file or the command line has for the same key."""
    if key not in step.keys:
        return step
    before = settings.get(key)
    others = tuple(one for one in step.keys if one != key)
    return Origin(step.kind, f"before that: {before.words}" if before else step.text, others)


def _left_out(why: str, setting: Origin | None) -> str:
    return why if setting is None else f"{why} ({setting.words})"


def _origin(key: str, steps: Mapping[str, Origin], settings: Mapping[str, Origin]) -> Origin | None:
    """The origin of a key, or of the nearest section around it that was set as a whole."""
    name = key
    while name:
        if (step := steps.get(name)) is not None:
            return step
        if (setting := settings.get(name)) is not None:
            return setting
        name = name.rpartition(".")[0]
    return None


def _of_class(key: str, classes: Mapping[str, str]) -> Origin:
    name = key
    while name and name not in classes:
        name = name.rpartition(".")[0]
    return Origin("default", classes.get(name, "the schema"))


def _settings(trail: Trail) -> dict[str, Origin]:
    """Which file and line, or which words of the command line, set a key last."""
    found = _of_files(trail.expanded, trail.config_name, trail)
    if trail.protocol is not None:
        found = {key: origin for key, origin in found.items() if not key.startswith("protocol.")}
        apart = _of_files(trail.protocol, "train", trail)
        found |= {key: origin for key, origin in apart.items() if key.startswith("protocol.")}
    for override in trail.overrides:
        for one in expand([override], trail.config_name, trail.config_dirs):
            _apply(readable(one), override, found)
    return found


def _of_files(overrides: list[str], config_name: str, trail: Trail) -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    for file, package in files_in_order(overrides, config_name, trail.config_dirs):
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=_LOADER)
        for key, node in _nodes(root, package):
            text = node.value if isinstance(node, ScalarNode) and "${" in node.value else None
            words = f"{_relative(file)}, line {node.start_mark.line + 1}"
            _set(key, _with_references("file", words, key, text), isinstance(node, MappingNode), found)
    return found


def _nodes(node: Node | None, key: str) -> Iterator[tuple[str, Node]]:
    """The values below a node, each under its dotted key."""
    if not isinstance(node, MappingNode):
        if node is not None and key:
            yield key, node
        return
    if not node.value and key:
        yield key, node
    for name, inner in node.value:
        if not key and name.value in ("defaults", "hydra"):
            continue
        yield from _nodes(inner, key if name.value == "<<" else f"{key}.{name.value}".lstrip("."))


def _apply(override: str, typed: str, found: dict[str, Origin]) -> None:
    """Takes an override of the command line: what it sets, or leaves out."""
    key = override.lstrip("+~").partition("=")[0]
    if "@" in key or key in GROUPS or key.startswith("hydra."):
        return
    parsed = OverridesParser.create().parse_override(override)
    if parsed.is_delete():
        for name in [one for one in found if one == key or one.startswith(f"{key}.")]:
            del found[name]
        return
    shown = hidden.in_override(typed)
    value = parsed.value()
    for name, one in leaves(key, value):
        text = one if isinstance(one, str) and "${" in one else None
        origin = _with_references("command line", shown, name, text)
        _set(name, origin, isinstance(one, Mapping), found)


def _set(key: str, origin: Origin, keeps_inner: bool, found: dict[str, Origin]) -> None:
    """Sets a key; a value that is no mapping takes the place of all that stood below it."""
    if not keeps_inner:
        for name in [one for one in found if one.startswith(f"{key}.")]:
            del found[name]
    found.pop(key, None)
    found[key] = origin


def _with_references(kind: Any, words: str, key: str, text: str | None) -> Origin:
    """The origin of a value, with the keys to which its ``${…}`` refer."""
    if text is None:
        return Origin(kind, words)
    section = key.split(".")
    names = [
        ".".join([*(section[: -len(dots)] if dots else []), name]) for dots, name in _REFERENCE.findall(text)
    ]  # fmt: skip
    shown = f"{words}: {hidden.in_value(key, text)}" if kind == "file" else words
    return Origin(kind, shown, tuple(dict.fromkeys(names)))


def _relative(file: Path) -> str:
    """The path of one of the package's files, from where the package lies; that of another file as it is."""
    roots = [Path(root).resolve() for root in embodied.config.__path__]
    inside = (str(file.resolve().relative_to(root.parent)) for root in roots if file.resolve().is_relative_to(root))
    return next(inside, str(file))
