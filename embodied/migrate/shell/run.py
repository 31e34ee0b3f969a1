"""Goes through a script as a shell does, without running anything: each way that it may take is a state of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from embodied.migrate.shell.builtins import ASSIGNMENT, BUILTINS, DECLARING, assign, declare
from embodied.migrate.shell.conditions import asks_whether_empty, asks_whether_same, holds
from embodied.migrate.shell.loops import counting, for_each, while_or_until
from embodied.migrate.shell.merging import after_own_shell, both_ways, different
from embodied.migrate.shell.nodes import (
    fits_one_of,
    literal_of,
    names_set,
    parts_of_if,
    rest_of,
    script_in,
)  # fmt: skip
from embodied.migrate.shell.state import Command, State, first_state
from embodied.migrate.shell.syntax import KEY, Node, broken, raw, tree
from embodied.migrate.shell.texts.scan import simple, tokens
from embodied.migrate.shell.texts.sums import UnknowableError
from embodied.migrate.shell.texts.text import Text, joined, known, unknown
from embodied.migrate.shell.words import text, words

DEEPEST = 20
BEFORE = ("exec", "command", "builtin", "nohup", "time")
"""What stands before a command and changes nothing of what it is given."""
COUNTS = re.compile(rf"{KEY.pattern}|~\w|--?(?:config|cn|cp)")
"""Words for which a command is kept: keys, and the name of a configuration."""
SIMPLE = ("command", "variable_assignment", "variable_assignments", "declaration_command", "unset_command")
SHELLS = ("bash", "sh", "zsh", "dash", "sbatch", "ssh")


def ways(text: str, name: str) -> list[State]:
    """Interprets a script without running it; returns one end state for each way through its branches.

    Args:
        name: what an error calls it.

    Raises:
        ConfigError: it is no shell.
        TooManyWaysError: it has too many ways.
    """
    return _Run(name).sequence(tree(text, name).children, first_state())


class _Run:
    """One reading of a script; ``depth`` counts functions and texts that are read as scripts, and ``reached`` is where
    the last command ends."""

    def __init__(self, name: str) -> None:
        self.name, self.depth, self.reached = name, 0, 0

    def sequence(self, nodes: Iterable[Node], state: State) -> list[State]:
        states, reached = [state], 0
        for node in [one for one in nodes if one.is_named and not one.is_error and one.type != "comment"]:
            if node.start_byte < reached:
                continue
            states = different(states)  # how the one before ended does not count any more
            after = [one for now in states for one in ([now] if now.ended else self.node(node, now))]
            states = different(after, also_status=True)
            if node.type in SIMPLE:
                reached = self.reached
        return states

    def node(self, node: Node, state: State) -> list[State]:
        read = KINDS.get(node.type)
        return [state] if read is None else read(self, node, state)

    def simple(self, node: Node, state: State) -> list[State]:
        """A command, or assignments. The parser finds where it begins; its words are read here, as it takes a line of
        assignments for a part of the next line's command, and a ``$`` within some words for their end."""
        rest, at, states = rest_of(node), 0, [state]
        size = len(raw(node))
        while at < size:
            written, length = self.words_of(rest[at:], node)
            site = node.start_byte + len(rest[:at].encode())
            line = node.start_point[0] + 1 + rest.count("\n", 0, at)
            states = [one for now in states for one in ([now] if now.ended else self.said(written, site, line, now))]
            at += max(length, 1)
        self.reached = node.start_byte + len(rest[: at - 1].encode())
        return states

    def words_of(self, rest: str, node: Node) -> tuple[list[str], int]:
        try:
            if rest.startswith("[["):
                end = rest.index("]]") + 2
                return list(tokens(rest[:end])), end
            return simple(rest)
        except ValueError:
            raise broken(self.name, node) from None

    def said(self, written: Sequence[str], site: int, line: int, state: State) -> list[State]:
        own = next((at for at, word in enumerate(written) if not ASSIGNMENT.fullmatch(word)), len(written))
        if own == len(written):
            for word in written:
                assign(word, state)
            if written:
                state.status = None if any("$(" in word or "`" in word for word in written) else True
            return [state]
        written = written[own:]
        if written[0] in DECLARING:
            declare(written, state)
            return [state]
        if written[0] in ("[", "[[", "test"):
            return self.tested(written[1 : None if written[0] == "test" else -1], state, written[0] == "[[")
        given = [word for one in written for word in words(one, state)]
        return self.called(given, site, line, state) if given else [state]

    def called(self, given: list[Text], site: int, line: int, state: State) -> list[State]:
        name = given[0].shown if given[0].known else ""
        if name in BEFORE and len(given) > 1 and not given[1].shown.startswith("-"):
            return self.called(given[1:], site, line, state)
        if name in state.functions and self.depth < DEEPEST:
            return self.function(state.functions[name], given[1:], state)
        if name == "eval":
            return self.script(joined(given[1:]), state) if len(given) > 1 else [state]
        if name in BUILTINS:
            BUILTINS[name](given, state)
            return [state]
        inner = script_in(given)
        if inner is not None:
            return [after_own_shell(state, one) for one in self.script(inner, state.copy())]
        command = Command(tuple(given), site, line)
        if command not in state.commands and any(COUNTS.match(word.shown) for word in given):
            state.commands = (*state.commands, command)
        state.status = None
        return [state]

    def function(self, body: Node, given: list[Text], state: State) -> list[State]:
        outside = state.arguments
        state.arguments, state.saved = tuple(given), (*state.saved, {})
        self.depth += 1
        states = self.node(body, state)
        self.depth -= 1
        for one in states:
            one.arguments = outside
            for name, value in one.saved[-1].items():
                if value is KeyError:
                    one.values.pop(name, None)
                else:
                    one.values[name] = value
            one.saved = one.saved[:-1]
            one.ended = "" if one.ended == "return" else one.ended
        return states

    def script(self, text: Text, state: State) -> list[State]:
        """A text that is read as a script."""
        if not text.known or self.depth >= DEEPEST:
            state.status = None
            return [state]
        self.depth += 1
        states = self.sequence(tree(text.shown, f"{self.name} ({text.shown[:40]!r})").children, state)
        self.depth -= 1
        return states

    def subshell(self, node: Node, state: State) -> list[State]:
        return different(after_own_shell(state, one) for one in self.sequence(node.children, state.copy()))

    def group(self, node: Node, state: State) -> list[State]:
        if node.children and node.children[0].type == "((":
            return self.counted(raw(node)[2:-2], state)
        return self.sequence(node.children, state)

    def counted(self, sum_: str, state: State) -> list[State]:
        inner = text(f'"{sum_}"' if "$" in sum_ and '"' not in sum_ else sum_, state)
        try:
            state.status = bool(state.number(inner.shown)) if inner.known else None
        except UnknowableError:
            state.status = None
            for name in names_set(sum_):
                state.values[name] = unknown(f"${name}")
        return [state]

    def pipeline(self, node: Node, state: State) -> list[State]:
        states = [state]
        for child in node.named_children:
            states = [after_own_shell(now, one) for now in states for one in self.node(child, now.copy())]
        return different(states)

    def redirected(self, node: Node, state: State) -> list[State]:
        """A command with a text as its input, which a shell reads as a script; and what stands behind such a text's
        name, as in ``cat <<EOF | program``."""
        behind = [child for child in node.named_children if child.type == "heredoc_redirect"]
        texts = [inner for child in behind for inner in child.named_children if inner.type == "heredoc_body"]
        body = node.child_by_field_name("body")
        if texts and body is not None and simple(raw(body))[0][:1] in [[shell] for shell in SHELLS]:
            inner = known(raw(texts[0]))
            return [after_own_shell(state, one) for one in self.script(inner, state.copy())]
        states = [state] if body is None else self.sequence([body], state)
        for child in behind:
            more = [inner for inner in child.named_children if inner.type in KINDS]
            states = [one for now in states for one in self.sequence(more, now)]
        return states

    def listed(self, node: Node, state: State) -> list[State]:
        left, sign, right = node.children[0], node.children[1].type, node.children[-1]
        found = []
        for one in self.node(left, state):
            if one.ended:
                found.append(one)
                continue
            for status, now in both_ways(one):
                found += self.node(right, now) if status == (sign == "&&") else [now]
        return different(found, also_status=True)

    def negated(self, node: Node, state: State) -> list[State]:
        states = self.node(node.named_children[0], state)
        for one in states:
            one.status = None if one.status is None else not one.status
        return states

    def test(self, node: Node, state: State) -> list[State]:
        written = raw(node)
        double = written.startswith("[[")
        inner = written[2:-2] if double else written[1:-1]
        if written.startswith("(("):
            return self.counted(inner, state)
        return self.tested(list(tokens(inner)), state, double)

    def tested(self, inner: Sequence[str], state: State, double: bool) -> list[State]:
        state.status = holds(inner, state, double)
        if state.status is None and (found := asks_whether_same(inner, state)):
            value, literal, says = found
            other = state.copy()
            state.learn(value, literal)
            state.status, other.status = says, not says
            return [state, other]
        asked = asks_whether_empty(inner, state)
        if state.status is not None or asked is None:
            return [state]
        name, says = asked
        given = state.copy()
        given.values[name] = unknown(f"${name}", given=True)
        state.status, given.status = says, not says
        return [state, given]

    def decided(self, nodes: Sequence[Node], state: State) -> list[tuple[bool, State]]:
        """The ways behind a condition, and whether it holds there."""
        return [pair for one in self.sequence(nodes, state) for pair in both_ways(one)]

    def if_(self, node: Node, state: State) -> list[State]:
        tests, bodies, others = parts_of_if(node)
        found = []
        for holds_, one in self.decided(tests, state):
            if one.ended:
                found.append(one)
            elif holds_:
                found += self.sequence(bodies, one)
            else:
                found += self._else(others, one)
        return different(found)

    def _else(self, others: Sequence[Node], state: State) -> list[State]:
        if not others:
            state.status = True
            return [state]
        if others[0].type == "else_clause":
            return self.sequence(others[0].named_children, state)
        tests, bodies, _ = parts_of_if(others[0])
        found = []
        for holds_, one in self.decided(tests, state):
            found += self.sequence(bodies, one) if holds_ else self._else(others[1:], one)
        return found

    def case(self, node: Node, state: State) -> list[State]:
        value = text(raw(node.child_by_field_name("value")), state)
        found, waiting, through = list[State](), [state], list[State]()
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            begin = max(one.end_byte for one in patterns)
            bodies = [child for child in item.named_children if child.start_byte > begin]
            fits = fits_one_of(value, [raw(one) for one in patterns], state) if waiting else False
            literals = [one for one in map(literal_of, patterns) if one is not None]
            if fits is None and len(literals) == len(patterns):
                each = [(now.copy(), one) for now in waiting for one in literals]
                for now, one in each:
                    now.learn(value, one)
                entering = [*through, *(now for now, _ in each)]
            else:
                entering = [*through, *(now.copy() for now in waiting if fits is not False)]
            waiting, through = [] if fits is True else waiting, []
            after = [one for now in entering for one in self.sequence(bodies, now)]
            end = item.children[-1].type
            found += after if end not in (";&", ";;&") else []
            through += after if end == ";&" else []
            waiting = [*waiting, *(after if end == ";;&" else [])]
        return different([*found, *waiting, *through])

    def define(self, node: Node, state: State) -> list[State]:
        state.functions[raw(node.child_by_field_name("name"))] = node.child_by_field_name("body")
        return [state]


KINDS: Mapping[str, Callable[[_Run, Node, State], list[State]]] = {
    **dict.fromkeys(SIMPLE, _Run.simple), "subshell": _Run.subshell,
    "compound_statement": _Run.group, "do_group": _Run.group, "pipeline": _Run.pipeline,
    "redirected_statement": _Run.redirected, "list": _Run.listed, "negated_command": _Run.negated,
    "test_command": _Run.test, "if_statement": _Run.if_, "case_statement": _Run.case, "for_statement": for_each,
    "while_statement": while_or_until, "c_style_for_statement": counting, "function_definition": _Run.define,
}  # fmt: skip
