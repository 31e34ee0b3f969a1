"""The tree of a shell's script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from embodied.errors import ConfigError
from embodied.migrate.shell.texts.scan import UnclosedError, tokens

Node = Any
"""A node of tree-sitter."""
KEY = re.compile(r"(?:\+{1,2}|~)?[A-Za-z_][\w@/:-]*\.[\w.@/:-]*=")
COMMENT_INSIDE = re.compile(r"(?<=\\\n)(?:[ \t]*#[^\n]*\n|[ \t]*\n(?=[ \t]*#))+(?=[ \t]*[-+~\w\"'$][^\n]*)")
WORDS = (
    "word", "concatenation", "string", "expansion", "arithmetic_expansion", "command_substitution", "array",
    "simple_expansion", "test_command", "variable_assignment", "heredoc_body", "subscript", "raw_string",
)  # fmt: skip
"""Nodes whose text is read as it stands."""


def prepared(text: str) -> tuple[str, list[int]]:
    """Prepares a script for parsing: plain line ends, no comments within commands. Returns it with the lines of those
    comments."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\\s*\Z", r"\1\n", text)
    lines = [text.count("\n", 0, at.start()) + 1 for at in COMMENT_INSIDE.finditer(text)]
    return COMMENT_INSIDE.sub(lambda at: "\\\n" * at[0].count("\n"), text), lines


def tree(text: str, name: str) -> Node:
    """Parses a shell script; returns the root of its syntax tree.

    Args:
        name: what an error calls it.

    Raises:
        ConfigError: the parser is not installed, or a part of the script that has keys is no shell.
    """
    root = _parser().parse(text.encode("utf-8")).root_node
    for bad in _errors(root):
        raise broken(name, bad)
    return root


def broken(name: str, node: Node) -> ConfigError:
    """Makes the error for a node of a script's syntax tree that is no valid shell."""
    return ConfigError(
        f"{name}, line {node.start_point[0] + 1}: this cannot be read as a shell reads it: {_first_line(node)}",
        "correct it where `bash -n` finds a fault in the script; or write the keys into a .txt file, one KEY=VALUE a "
        "line",
    )


@cache
def _parser() -> Any:
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError as error:
        raise ConfigError(
            f"scripts are read with tree-sitter, which is not here: {error}", "pip install 'embodied-rl[migrate]'"
        ) from None
    return Parser(Language(tree_sitter_bash.language()))


def _first_line(node: Node) -> str:
    text = raw(node).strip()
    return repr(text.splitlines()[0][:80]) if text else "something is missing"


def _errors(node: Node) -> Iterator[Node]:
    """Nodes that the parser did not understand, and of which keys may be a part."""
    for child in node.children:
        if not (child.has_error or child.is_missing):
            continue
        if (child.is_error or child.is_missing) and (child.is_missing or KEY.search(raw(child)) or _is_open(child)):
            yield child
        elif child.type not in WORDS or _is_open(child):
            yield from _errors(child)


def _is_open(node: Node) -> bool:
    """Whether a quote of it is not closed."""
    try:
        list(tokens(raw(node)))
    except UnclosedError:
        return True
    return False


def raw(node: Node) -> str:
    """Returns a syntax node's source text."""
    return str(node.text.decode("utf-8"))
