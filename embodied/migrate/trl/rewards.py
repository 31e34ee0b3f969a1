"""The reward functions of a training script as a module of their own: importing the script would train."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Any


def of_script(theirs: Mapping[str, Any]) -> list[str]:
    """Returns the names of the reward functions that stand in the script itself."""
    funcs = theirs.get("reward_funcs")
    mine = [one for one in funcs if isinstance(one, Mapping) and "path" not in one] if isinstance(funcs, list) else []
    return [str(one["name"]) for one in mine if set(one) == {"name"}]


def with_path(theirs: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns TRL's keys with the file ``path`` for the functions of the script."""
    names = of_script(theirs)
    funcs = [
        {"path": path, "function": one["name"]} if isinstance(one, Mapping) and one.get("name") in names else one
        for one in theirs["reward_funcs"]
    ]
    return {**theirs, "reward_funcs": funcs}


def module_of(text: str, functions: Iterable[str], script: str) -> str:
    """Returns the source of a module with these functions of a script, and with what they use of it: imports,
    functions, classes, and assigned names.

    Args:
        text: the script.
        script: its name.
    """
    tree = ast.parse(text)
    defined = {name: node for node in tree.body for name in _defines(node)}
    kept: set[ast.stmt] = set()
    wanted = [*functions]
    while wanted:
        node = defined.get(wanted.pop())
        if node is not None and node not in kept:
            kept.add(node)
            wanted += [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    lines = text.splitlines()
    parts = [_lines_of(node, lines) for node in tree.body if node in kept]
    return "\n".join([f'"""Reward functions of {script}, with what they use of it."""', "", *parts]) + "\n"


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(one.asname or one.name).partition(".")[0] for one in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _lines_of(node: ast.stmt, lines: list[str]) -> str:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    of_import = isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
    return "\n".join([*([] if of_import else ["", ""]), *lines[first - 1 : node.end_lineno]])
