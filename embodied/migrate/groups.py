"""Which env and which policy a configuration is for: the groups ``env`` and ``model``.

A group that is not here stays open. No other one takes its place, and nothing is left of what was said of its parts: a
policy that is built from another one's weights is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.migrate.result import GROUPS, Migration, Note
from embodied.schema.compose.compose import group_options
from embodied.schema.others.key_table import keys
from embodied.schema.others.values import ENVS, MODELS

NAMES = ("env", "env.eval", "model")
TRAINS = ("algorithm.", "actor.optim.", "actor.global_batch_size")
"""Beginnings of keys of a file that says how something is trained; it then has to say what, too."""
SIDES = {"env.train": "env", "env.eval": "env.eval", "actor.model": "model"}
"""Where a list of defaults puts a file → our group."""
PARTS = {"env": ("env.train.", "env.eval."), "env.eval": ("env.eval.",), "model": ("actor.model.", "actor.tokenizer.")}
"""Group → beginnings of keys that say something of it."""
WHAT = {"env": "env", "env.eval": "env of evaluations", "model": "policy"}

FLOW = ("smolvla", "pi0", "pi05")
"""Our policies whose keys of noise, steps and statistics decide what is trained: RLinf's alone are translated."""

Chosen = Mapping[str, str]
"""Group → the name of their file."""


def of_defaults(defaults: Any) -> tuple[dict[str, str], list[Note]]:
    """Reads RLinf's list of group files (``env/libero_10@env.train``): the files by group, and a note for
    each entry."""
    chosen, notes = dict[str, str](), list[Note]()
    for entry in defaults if isinstance(defaults, list) else []:
        for text in entry if isinstance(entry, Mapping) else [entry]:
            value = entry[text] if isinstance(entry, Mapping) else None
            name, _, place = str(text).removeprefix("override ").lstrip("/").partition("@")
            kind, _, file = name.partition("/")
            file, group = str(value) if value else file, SIDES.get(place, kind)
            if kind in GROUPS and group in GROUPS and file:
                chosen.setdefault(group, file)
                notes.append(Note("defaults", text, "renamed", {group: our_name(kind, file)}))
            elif name != "_self_":
                notes.append(Note("defaults", text, "nothing", why="groups of theirs that ours do not need"))
    return chosen, notes


def our_name(kind: str, name: str) -> str:
    """Returns our name for another system's env or model file; a name that is not in the tables stays as it is."""
    return (MODELS if kind == "model" else ENVS).get(name.lower(), name)


def choose(migration: Migration, system: str, chosen: Chosen, names_problems: bool) -> None:
    """Fills the groups of a migration: what a key says comes before the list of defaults.

    Args:
        names_problems: whether their file names data of problems.
    """
    said = {group: our_name(group.partition(".")[0], name) for group, name in chosen.items()}
    for note in migration.notes:
        said |= {name: str(note.settings[name]) for name in NAMES if name in note.settings and note.key != "defaults"}
    if "env" not in said and "env" not in migration.open and names_problems:
        said["env"] = "math"
    if said.get("env") == "math" and "model" not in migration.open:
        said.setdefault("model", "causal_lm")
    if said.get("env.eval", said.get("env")) == said.get("env"):
        said.pop("env.eval", None)
    named = {*said, *migration.open}
    for group, name in said.items():
        if group == "model" and name in FLOW and system != "rlinf":
            migration.open.setdefault(
                group,
                f"their keys for {name} are not translated: give model={name}, and its keys by hand (docs/migrate.md)",
            )
        elif name in group_options(group.partition(".")[0]):
            migration.groups[group] = name
        else:
            migration.open.setdefault(group, f"there is no {WHAT[group]} {name} here{_near(group, name)}")
    if any(key.startswith(TRAINS) for key in migration.settings):
        for group in ("env", "model"):
            if group not in migration.groups:
                migration.open.setdefault(group, f"their file names no {WHAT[group]} that is here")
    for group in [group for group in PARTS if group in migration.open and group in named]:
        _leave(migration, group)


def _near(group: str, name: str) -> str:
    same = [one for one in group_options(group.partition(".")[0]) if name.lower() in one or one in name.lower()]
    return f"; the nearest by name: {', '.join(same[:5])}" if same else ""


def _leave(migration: Migration, group: str) -> None:
    """Takes out what was said of a group that is not here. Keys that every env has stay."""
    migration.groups.pop(group, None)
    common = {key.name for key in keys()} if group != "model" else set[str]()
    gone = [key for key in migration.settings if key.startswith(PARTS[group]) and key not in common]
    of_it = f"it is of the {WHAT[group]}, which is not here"
    for number, note in enumerate(migration.notes):
        named = group in note.settings
        if named or (note.settings and not set(note.settings) - set(gone)):
            why = migration.open[group] if named else of_it
            migration.notes[number] = Note(note.key, note.value, "refused", {}, why)
    migration.drop(gone)
