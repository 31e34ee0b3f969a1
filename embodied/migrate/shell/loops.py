"""Goes through the loops of a script; one of which nobody knows how often it runs leaves its names unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from embodied.migrate.shell.merging import different, out_of_loop
from embodied.migrate.shell.nodes import names_assigned, parts_of_for, rest_of
from embodied.migrate.shell.state import State
from embodied.migrate.shell.syntax import Node, raw
from embodied.migrate.shell.texts.text import unknown
from embodied.migrate.shell.words import words

MOST_ROUNDS = 1000


class NodeInterpreter(Protocol):
    """The interpreter of shell nodes that runs a loop's body; a part of :mod:`embodied.migrate.shell.run`."""

    def sequence(self, nodes: Iterable[Node], state: State) -> list[State]:
        """Interprets nodes one after another; returns the states after the last."""

    def node(self, node: Node, state: State) -> list[State]:
        """Interprets one node; returns the states after it, one for each way through its branches."""

    def counted(self, sum_: str, state: State) -> list[State]:
        """Evaluates an arithmetic expression as a command; its value sets the exit status."""

    def words_of(self, rest: str, node: Node) -> tuple[list[str], int]:
        """Splits the simple command at the beginning of ``rest`` into raw words, and gives its end offset."""


def for_each(run: NodeInterpreter, node: Node, state: State) -> list[State]:
    """Interprets ``for NAME in WORDS`` and ``select``; returns the states in which the loop may end."""
    name, body = raw(node.child_by_field_name("variable")), node.child_by_field_name("body")
    named = next(iter(node.children_by_field_name("value")), None)
    written = run.words_of(rest_of(named), node)[0] if named is not None else ['"$@"']
    each = [word for one in written for word in words(one, state)]
    if node.children[0].type == "select":
        return perhaps(run, body, state, name)
    if state.arguments is None and any(word.shown in ("$@", "$*") for word in each):
        return [state]  # without arguments the script leaves the loop at once
    if len(each) > MOST_ROUNDS or not all(word.known or word.is_nonempty for word in each):
        return perhaps(run, body, state, name)
    states = [state]
    for word in each:
        for one in states:
            if not one.ended:
                one.set(name, word)
        states = round_(run, body, states)
    return out_of_loop(states)


def round_(run: NodeInterpreter, body: Node, states: Sequence[State]) -> list[State]:
    """Interprets a loop's body once from each state; returns the states after it."""
    found = different(one for now in states for one in ([now] if now.ended else run.node(body, now)))
    for one in found:
        one.ended = "" if one.ended == "continue" else one.ended
    return found


def perhaps(run: NodeInterpreter, body: Node, state: State, *more: str) -> list[State]:
    """Interprets a loop whose number of rounds cannot be known: what its body assigns is unknown afterwards."""
    state.status = True
    unsure = state.copy()
    for name in (*more, *names_assigned(body)):
        unsure.values[name] = unknown(f"${name}")
    return different([state, *out_of_loop(round_(run, body, [unsure]))])


def while_or_until(run: NodeInterpreter, node: Node, state: State) -> list[State]:
    """Interprets ``while`` and ``until``. A loop over the script's arguments is left out, as it runs without any."""
    body = node.child_by_field_name("body")
    tests = [child for child in node.named_children if child.start_byte < body.start_byte]
    asked = " ".join(map(raw, tests))
    if state.arguments is None and any(sign in asked for sign in ("$#", "$1", "${1", "$@", "getopt")):
        return [state]  # without arguments the script leaves the loop at once
    return loop(run, tests, body, None, state, node.children[0].type == "while")


def counting(run: NodeInterpreter, node: Node, state: State) -> list[State]:
    """Interprets ``for ((BEGIN; TEST; STEP))``; returns the states in which the loop may end."""
    begin, test, step = parts_of_for(raw(node))
    state = run.counted(begin or "0", state)[0]
    return loop(run, test or "1", node.child_by_field_name("body"), step or "0", state, True)


def loop(
    run: NodeInterpreter, tests: Sequence[Node] | str, body: Node, step: str | None, state: State, while_true: bool
) -> list[State]:
    """Interprets rounds of a loop until its test's status differs from ``while_true``, at most ``MOST_ROUNDS``."""
    states, out = [state], list[State]()
    for _ in range(MOST_ROUNDS):
        going = []
        for now in states:
            before = now.copy()
            after = run.counted(tests, now) if isinstance(tests, str) else run.sequence(tests, now)
            if len(after) > 1 or after[0].status is None:
                out += perhaps(run, body, before)
            elif after[0].status == while_true:
                going.append(after[0])
            else:
                out.append(after[0])
        states = round_(run, body, going)
        out += [one for one in states if one.ended]
        states = [one for one in states if not one.ended]
        if step is not None:
            states = [run.counted(step, one)[0] for one in states]
        if not states:
            return out_of_loop(different(out))
    return out_of_loop(different([*out, *states]))
