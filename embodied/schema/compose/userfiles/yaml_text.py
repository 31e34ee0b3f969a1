"""Checks that a text is a mapping in YAML before anything else reads it: an error names the file and the line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from embodied.errors import ConfigError

MOST = 200_000
"""Values of a file at most, with those that aliases repeat."""
STANDARD = "tag:yaml.org,2002:"
FIXES = {
    "'\\t'": "indent with spaces: YAML knows no tabs there",
    "found '?'": "write a value in the place of ???; a key that stays open is left out of the file",
    "duplicate key": "keep one of them",
    "another document": "keep one of the documents; they are divided by ---",
    "alias": "write the anchor (&NAME) before it is used, and not within itself",
    "tag": "write the value without the tag (!…)",
}
"""What an error says → what to do about it."""


def check_text(text: str, name: str) -> bool:
    """Checks that a text is a mapping of YAML, or empty.

    Args:
        name: of the file.

    Returns:
        Whether there is a mapping; an empty text has none.

    Raises:
        ConfigError: it is none, has a key twice, or refers to itself.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _wrong(name, mark.line + 1 if mark else 1, str(error.problem or error.context)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _wrong(name, line, f"the character #x{error.character:04x} cannot stand in YAML", "remove it") from None
    except RecursionError:
        raise _wrong(name, 1, "its lists and mappings are too deep") from None
    if root is None or (isinstance(root, ScalarNode) and not root.value):
        return False
    if not isinstance(root, MappingNode):
        raise _wrong(name, _line(root), "KEY: VALUE is expected at the top")
    for count, node in enumerate(_values(root, (), name)):
        if count > MOST:
            raise _wrong(name, _line(node), f"it has more than {MOST} values with those of each alias")
    return True


def check_file(file: Path) -> None:
    """Checks a file as :func:`check_text` does its text, and that no mark of an encoding hides ``# @package`` from
    hydra."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no text in UTF-8: {error.reason}", "save it as UTF-8") from None
    if text.startswith("\ufeff") and "@package" in text.partition("\n")[0]:
        raise _wrong(str(file), 1, "it begins with a byte-order mark", "save it as UTF-8 without BOM")
    check_text(text.removeprefix("\ufeff"), str(file))


def check_folders(folders: Iterable[str]) -> None:
    """Checks all YAML files in some folders; the first that is wrong is the error."""
    for folder in folders:
        for file in sorted(Path(folder).expanduser().rglob("*.yaml")):
            if file.is_file():
                check_file(file)


def _values(node: Node, above: tuple[Node, ...], name: str) -> Iterator[Node]:
    """All values in a node, those of an alias each time it is used."""
    if any(node is one for one in above):
        raise _wrong(name, _line(node), "an alias stands within what it names")
    if not node.tag.startswith(STANDARD) or node.tag.startswith(f"{STANDARD}python/"):
        raise _wrong(name, _line(node), f"the tag {node.tag} is not known")
    yield node
    if isinstance(node, ScalarNode) and "${" in node.value:
        _check_reference(node, name)
    if isinstance(node, SequenceNode):
        for inner in node.value:
            yield from _values(inner, (*above, node), name)
    elif isinstance(node, MappingNode):
        _check_keys(node, name)
        for _, inner in node.value:
            yield from _values(inner, (*above, node), name)


def _check_reference(node: ScalarNode, name: str) -> None:
    try:
        OmegaConf.create({"value": node.value})
    except OmegaConfBaseException:
        raise _wrong(name, _line(node), f"{node.value} is no reference", "write it as ${KEY}, or without $") from None


def _check_keys(node: MappingNode, name: str) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            raise _wrong(name, _line(key), "a list or mapping stands as a key")
        if key.value in seen and key.value != "<<":
            raise _wrong(name, _line(key), f"duplicate key {key.value}")
        seen.add(key.value)


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _wrong(name: str, line: int, what: str, fix: str = "") -> ConfigError:
    fix = fix or next((one for sign, one in FIXES.items() if sign in what), "correct that line")
    return ConfigError(f"{name}, line {line}: {what}", fix)
