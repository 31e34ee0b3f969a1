"""Traces each value of a configuration to the file and line, or the words of the command line, that set it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

import embodied.config
from embodied.lib import hidden
from embodied.schema.compose.hydra_files import files_in_order
from embodied.schema.compose.origins import Kind, Origin, Origins, Trail
from embodied.schema.compose.short_forms import expand, parsed, readable
from embodied.schema.keys.groups import GROUPS
from embodied.schema.keys.paths import leaves
from embodied.schema.others.key_table import keys

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
    classes = _classes()
    quiet = {key for key in trail.left_out if key in classes}
    of: dict[str, Origin] = {}
    for key, value in leaves("", resolved):
        of[key] = _origin(key, steps, {} if key in quiet else settings) or _of_class(key, classes)
        if isinstance(value, list):
            of |= {element: origin for element, origin in settings.items() if element.startswith(f"{key}.")}
    return Origins(of, {key: _left_out(why, settings.get(key)) for key, why in trail.left_out.items()})


@cache
def _classes() -> dict[str, str]:
    """Returns the class of each key of the schema."""
    return {key.name: key.model.__name__ for key in keys()}


def _with_what_was_before(key: str, step: Origin, settings: Mapping[str, Origin]) -> Origin:
    """The origin of a value that is made of what a file or the command line has for the same key."""
    if key not in step.keys:
        return step
    before = settings.get(key)
    others = tuple(source for source in step.keys if source != key)
    return Origin(step.kind, f"before that: {before.words}" if before else step.text, others)


def _left_out(why: str, setting: Origin | None) -> str:
    return why if setting is None else f"{why} ({setting.words})"


def _origin(key: str, steps: Mapping[str, Origin], settings: Mapping[str, Origin]) -> Origin | None:
    """The origin of a key, or of the nearest section around it that was set as a whole. A step comes after all files
    and the command line, so it has replaced what these say below its key."""
    sections = [key, *(key[:place] for place in range(len(key) - 1, 0, -1) if key[place] == ".")]
    return next((known[name] for known in (steps, settings) for name in sections if name in known), None)


def _of_class(key: str, classes: Mapping[str, str]) -> Origin:
    name = key
    while name and name not in classes:
        name = name.rpartition(".")[0]
    return Origin("default", classes.get(name, "the schema"))


def _settings(trail: Trail) -> dict[str, Origin]:
    """Returns the file and line, or the words of the command line, that set each key last."""
    settings = _of_files(trail.expanded, trail.config_name, trail)
    if trail.protocol is not None:
        apart = _of_files(trail.protocol, "train", trail)
        settings = {key: origin for key, origin in settings.items() if not key.startswith("protocol.")}
        settings |= {key: origin for key, origin in apart.items() if key.startswith("protocol.")}
    for typed in trail.overrides:
        for override in expand([typed], trail.config_name, trail.config_dirs):
            _apply(readable(override), typed, settings)
    return settings


def _of_files(overrides: list[str], config_name: str, trail: Trail) -> dict[str, Origin]:
    """Returns the file and line that set each key last."""
    settings: dict[str, Origin] = {}
    for file, package in files_in_order(overrides, config_name, trail.config_dirs, trail.sources):
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=_LOADER)
        for key, node in _nodes(root, package):
            text = node.value if isinstance(node, ScalarNode) and "${" in node.value else None
            words = f"{_relative(file)}, line {node.start_mark.line + 1}"
            _set(key, _with_references("file", words, key, text), isinstance(node, MappingNode), settings)
    return settings


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


def _apply(override: str, typed: str, settings: dict[str, Origin]) -> None:
    """Takes an override of the command line: what it sets, or leaves out."""
    key = override.lstrip("+~").partition("=")[0]
    if "@" in key or key in GROUPS or key.startswith("hydra."):
        return
    setting = parsed(override)
    if setting.is_delete():
        for name in [name for name in settings if name == key or name.startswith(f"{key}.")]:
            del settings[name]
        return
    words = hidden.in_override(typed)
    for name, value in leaves(key, setting.value()):
        text = value if isinstance(value, str) and "${" in value else None
        _set(name, _with_references("command line", words, name, text), isinstance(value, Mapping), settings)


def _set(key: str, origin: Origin, keeps_inner: bool, settings: dict[str, Origin]) -> None:
    """Sets a key; a value that is no mapping takes the place of all that stood below it."""
    if not keeps_inner:
        for name in [name for name in settings if name.startswith(f"{key}.")]:
            del settings[name]
    settings[key] = origin


def _with_references(kind: Kind, words: str, key: str, text: str | None) -> Origin:
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
