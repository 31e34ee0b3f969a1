"""Hints in errors about keys of other systems."""

from __future__ import annotations

from typing import Any

from embodied.schema.keys.groups import group_options
from embodied.schema.others.tables import Row, by_last_name, find, joined
from embodied.schema.others.translation import Lookup, unknown
from embodied.schema.others.translation_rules import translate_key
from embodied.schema.others.values import Settings, as_overrides

SHORTEST = 5
"""A last name of fewer letters says nothing about where it came from."""


def hint(key: str, value: Any = None, get: Lookup = unknown) -> str:
    """Returns a hint at our counterpart of another system's key, as the end of a sentence; empty if no system has it.

    Args:
        value: what the user gave; it is said how it is written here.
        get: what is known of their other keys.
    """
    return "".join(_answer(key, same, value, get) for same in _answers(find(key)))


def elsewhere(key: str, value: Any = None, get: Lookup = unknown) -> str:
    """Returns a hint for a key that another system has in another section than ``key`` says."""
    return "".join(_answer(key, same, value, get) for same in _answers(_elsewhere(key)))


def instead(key: str, value: Any, get: Lookup = unknown) -> Settings:
    """Returns our settings that replace another system's key and value; empty where no value or several answers are
    known."""
    answers = _answers(find(key)) or _answers(_elsewhere(key))
    said = [_settings(key, same[0], value, get) for same in answers]
    return said[0] if said and all(one == said[0] for one in said) else {}


def _elsewhere(key: str) -> tuple[Row, ...]:
    name = key.rpartition(".")[2]
    same = by_last_name(name) if len(name) >= SHORTEST else ()
    return same[:1] if same and same[0].kind != "out" else ()


def _answers(found: tuple[Row, ...]) -> list[list[Row]]:
    """The rows, those that have the same answer together."""
    answers: dict[tuple[str, ...], list[Row]] = {}
    for row in found:
        answers.setdefault(row.ours, []).append(row)
    return list(answers.values())


def _settings(key: str, row: Row, value: Any, get: Lookup) -> Settings:
    if not row.ours or row.ours == (key,):
        return {}
    settings = translate_key(row, value, get).settings
    return settings if settings.get("env", "math") in group_options("env") else {}


def _answer(key: str, same: list[Row], value: Any, get: Lookup) -> str:
    row, systems = same[0], joined(list(dict.fromkeys(row.name for row in same)))
    if not row.ours:
        return f" {systems}'s key is left out here: {row.meaning}."
    if row.ours == (key,):
        return f" {systems}'s key ({row.meaning}) is of no use for what is chosen here."
    said, settings = translate_key(row, value, get), _settings(key, row, value, get)
    text = f" {systems}'s key is here {joined(row.ours)}"
    if "actor.model._target_" in row.ours:
        text = f" {systems}'s key is here model=NAME (actor.model._target_)"
    if any(name.startswith("env.") and name.endswith("._target_") for name in row.ours):
        text = f" {systems}'s key is here env=NAME ({joined(row.ours)})"
    if settings:
        why = f" ({said.why})" if said.why and said.how == "derived" else ""
        return f"{text}: set {as_overrides(settings)}{why}."
    return f"{text}: {said.why}." if said.why and value is not None else f"{text}."
