"""Brings the ways together that a script may take, where they have become the same or too many."""

from __future__ import annotations

from collections.abc import Iterable

from embodied.migrate.shell.state import State
from embodied.migrate.shell.texts.text import unknown

MOST_STATES = 64


class TooManyWaysError(Exception):
    """A script branches more often than can be followed."""


def different(states: Iterable[State], also_status: bool = False) -> list[State]:
    """Drops states that equal an earlier one; joins them where more than :data:`MOST_STATES` are left."""
    found: list[State] = []
    for state in states:
        if not any(state.same_as(one) and (not also_status or one.status == state.status) for one in found):
            found.append(state)
    return found if len(found) <= MOST_STATES else _together(found)


def _together(states: Iterable[State]) -> list[State]:
    """One state for all that have run the same commands: what they do not agree on, nobody knows."""
    found: list[State] = []
    for state in states:
        same = [one for one in found if (one.commands, one.ended) == (state.commands, state.ended)]
        if not same:
            found.append(state)
            continue
        (one,) = same
        for name in {**one.values, **state.values}:
            if name not in one.values or one.values[name] != state.values.get(name):
                one.values[name] = unknown(f"${name}")
        one.arguments = one.arguments if one.arguments == state.arguments else None
    if len(found) > MOST_STATES:
        raise TooManyWaysError
    return found


def both_ways(state: State) -> list[tuple[bool, State]]:
    """Splits a state whose last exit status is unknown into success and failure: ``(succeeded, state)`` each."""
    if state.status is not None:
        return [(state.status, state)]
    other = state.copy()
    state.status, other.status = True, False
    return [(True, state), (False, other)]


def out_of_loop(states: Iterable[State]) -> list[State]:
    """Clears a pending ``break`` or ``continue`` of states that leave a loop."""
    found = list(states)
    for one in found:
        one.ended = "" if one.ended in ("break", "continue") else one.ended
    return different(found)


def after_own_shell(before: State, after: State) -> State:
    """Returns the state after a subshell: it keeps the commands that ran, the exit status and nothing else of it."""
    state = before.copy()
    state.commands, state.status, state.sources = after.commands, after.status, after.sources
    return state
