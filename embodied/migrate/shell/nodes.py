"""What parts of a script's tree say: its words, the parts of its loops and branches."""

from __future__ import annotations

import re
from collections.abc import Sequence

from embodied.migrate.shell.state import State
from embodied.migrate.shell.syntax import Node, raw
from embodied.migrate.shell.texts.patterns import matches
from embodied.migrate.shell.texts.text import Text
from embodied.migrate.shell.words import pattern

SETS = re.compile(
    r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|([A-Za-z_]\w*)\s*(?:\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)


def rest_of(node: Node) -> str:
    """Returns the script's text from a node on."""
    root = node
    while root.parent is not None:
        root = root.parent
    return str(root.text[node.start_byte - root.start_byte :].decode("utf-8"))


def parts_of_if(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """Splits an ``if`` or ``elif`` into its condition, the nodes of its first branch, and its other branches."""
    then = next((child.start_byte for child in node.children if child.type == "then"), node.end_byte)
    tests = [child for child in node.named_children if child.start_byte < then]
    others = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
    bodies = [child for child in node.named_children if child.start_byte > then and child not in others]
    return tests, bodies, others


def fits_one_of(value: Text, patterns: Sequence[str], state: State) -> bool | None:
    """Returns whether a value matches one of a ``case``'s patterns; None if that cannot be known."""
    for one in patterns:
        wanted = pattern(one, state)
        if wanted.known and set(wanted.shown) == {"*"}:
            return True
        if not value.known or not wanted.known:
            return None
        if matches(value.shown, wanted.shown):
            return True
    return False


def literal_of(node: Node) -> str | None:
    """Returns the only text that a ``case`` pattern matches; None if it matches several."""
    text = raw(node)
    inner = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    return inner if re.fullmatch(r"[\w.:/-]+", inner) else None


def script_in(words: Sequence[Text]) -> Text | None:
    """Returns the script text in the arguments of ``bash -c TEXT``."""
    for number, word in enumerate(words[1:-1], start=1):
        shell = words[number - 1].shown.rpartition("/")[2]
        if word.shown in ("-c", "-lc", "-xc", "-ec") and shell.startswith(("bash", "sh", "zsh", "-")):
            return words[number + 1]
    return None


def names_assigned(node: Node) -> list[str]:
    """Lists the variables that a part of a script assigns."""
    found = []
    for child in node.named_children:
        if child.type == "variable_assignment":
            found.append(raw(child.child_by_field_name("name")).partition("[")[0])
        found += names_assigned(child)
    return found


def names_set(sum_: str) -> list[str]:
    """Lists the variables that an arithmetic expression assigns."""
    return [name for each in SETS.findall(sum_) for name in each if name]


def parts_of_for(source: str) -> tuple[str, str, str]:
    """Splits ``for ((begin; test; step))`` into its three arithmetic expressions."""
    inner = source[source.index("((") + 2 : source.index("))")]
    begin, test, step = (part.strip() for part in [*inner.split(";"), "", ""][:3])
    return begin, test, step
