"""What an error says of a key that another system has."""

from __future__ import annotations

from typing import Any

from embodied.schema.foreign import Row, by_last_name, find, joined
from embodied.schema.foreign_rules import said_of
from embodied.schema.foreign_values import as_overrides
from embodied.schema.groups import group_options

SHORTEST = 5
"""A last name of fewer letters says nothing about where it came from."""


def hint(key: str, value: Any = None) -> str:
    """Returns what a key of another system is here, as the end of a sentence; empty if no system has it.

    Args:
        value: what the user gave; it is said how it is written here.
    """
    return _told(key, find(key), value)


def elsewhere(key: str, value: Any = None) -> str:
    """Does the same for a key that another system has in another section."""
    name = key.rpartition(".")[2]
    same = by_last_name(name) if len(name) >= SHORTEST else ()
    return _told(key, same[:1], value) if same and same[0].kind != "out" else ""


def _told(key: str, found: tuple[Row, ...], value: Any) -> str:
    answers: dict[tuple[str, ...], list[Row]] = {}
    for row in found:
        answers.setdefault(row.ours, []).append(row)
    return "".join(_answer(key, same, value) for same in answers.values())


def _answer(key: str, same: list[Row], value: Any) -> str:
    row, systems = same[0], joined(list(dict.fromkeys(row.name for row in same)))
    if not row.ours:
        return f" {systems}'s key is left out here: {row.meaning}."
    if row.ours == (key,):
        return f" {systems}'s key ({row.meaning}) is of no use for what is chosen here."
    said = said_of(row, value)
    text = f" {systems}'s key is here {joined(row.ours)}"
    if "actor.model._target_" in row.ours:
        text = f" {systems}'s key is here model=NAME (actor.model._target_)"
    if any(name.startswith("env.") and name.endswith("._target_") for name in row.ours):
        text = f" {systems}'s key is here env=NAME ({joined(row.ours)})"
    if said.settings and said.settings.get("env", "math") in group_options("env"):
        return f"{text}: set {as_overrides(said.settings)}."
    return f"{text}: {said.why}." if said.why and value is not None else f"{text}."
