"""Turns a configuration of RLinf, verl, ROLL, Cosmos-RL or TRL into one of ours, and says what became of each key.

The order of their keys says nothing: they are taken in the order of their names, and where two contradict each other,
:mod:`embodied.migrate.claims` says which one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from embodied.migrate import groups
from embodied.migrate.claims import settle
from embodied.migrate.families import family_of
from embodied.migrate.fit import fit
from embodied.migrate.result import Migration, Note
from embodied.migrate.trial import TRAINED, attempt
from embodied.migrate.usual import kind_of, usual
from embodied.schema.others.key_table import keys
from embodied.schema.others.tables import LEFT_OFF, NAMES, Row, find
from embodied.schema.others.translation import Lookup, Unresolved, UnresolvedError, plain
from embodied.schema.others.translation_rules import translate_key
from embodied.schema.others.values import number_or_text

SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "rlinf": ("rlinf", "rlinf-old"), "verl": ("verl", "simplevla-rl"), "roll": ("roll",), "cosmos-rl": ("cosmos-rl",),
    "trl": ("trl",),
}  # fmt: skip
"""What a user calls a system → its names in the tables."""

UNRESOLVED = re.compile(r"\$[({\w]|^\?\?\?$")
"""A reference that their file does not resolve, or YAML's sign of a value that has to be given. What only a shell can
know comes as an ``Unresolved``."""
PROBES = (True, False, 0.5, 2, "x")
"""Values of each kind, to see which of our keys one of theirs says whatever its value is."""
DECIDES = (
    *TRAINED, "algorithm.group_size", "algorithm.kl_beta", "algorithm.use_kl_in_reward", "algorithm.clip_ratio_low",
    "algorithm.clip_ratio_high", "actor.optim.lr", "actor.model.model_path", "actor.model.is_lora",
    "actor.global_batch_size", "data.rollout_batch_size", "env.train.verifier", "actor.model.noise_method",
    "actor.model.noise_level", *groups.NAMES,
)  # fmt: skip
"""Keys and groups of ours that say what is trained: no default stands for a value of theirs that cannot be known."""


def migrate(
    mapping: Mapping[str, Any], system: str, overrides: Sequence[str] = (), devices: int | None = None
) -> Migration:
    """Translates a foreign configuration (nested mapping) of ``system`` into ours.

    Args:
        mapping: theirs, nested; references in it are resolved where they can be.
        system: of :data:`SYSTEMS`.
        overrides: overrides of ours, e.g. ``model=openvla_oft_tiny``, with which it is tried.
        devices: GPUs of this machine; None = they are counted where their file asks for several.
    """
    chosen, notes = groups.of_defaults(mapping.get("defaults"))
    theirs = {str(name): inner for name, inner in mapping.items() if name != "defaults"}
    flat = {key: number_or_text(value) for key, value in sorted(_leaves("", theirs, SYSTEMS[system]))}
    added = usual(system, flat, chosen)
    known = {**added, **flat}
    own = {key.name for key in keys()}
    found = Migration({}, {}, notes)
    look, systems = _lookup(known, system), _names_of(system, kind_of(system, flat, chosen))
    told = [note_of(key, value, systems, look, own, found) for key, value in known.items()]
    found.notes += [note for note in settle(told, added) if note.how != "nothing" or note.key not in added]
    for number, note in enumerate(found.notes):
        if note.key in added:
            found.notes[number] = replace(note, key=f"{note.key.removeprefix('=')} (their default)")
        found.settings |= {name: one for name, one in note.settings.items() if name not in groups.NAMES}
    _leave_open(found, chosen)
    names_problems = system == "trl" or any(_names_problems(key, SYSTEMS[system]) for key in flat)
    groups.choose(found, system, chosen, names_problems)
    fit(found, system, kind_of(system, flat, chosen), flat, overrides)
    attempt(found, overrides, devices)
    return found


def _leaves(path: str, value: Any, systems: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The keys in a mapping, with their values; a mapping that is one setting of theirs stays whole."""
    if not isinstance(value, Mapping) or not value or (path and find(path, systems)):
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(f"{path}.{name}".lstrip("."), inner, systems)


def _lookup(known: Mapping[str, Any], system: str) -> Lookup:
    """Their key → its value, also where a user leaves out the first part of the key. Raises :class:`UnresolvedError`
    for a value that cannot be known, so that nothing is computed from it."""
    first = LEFT_OFF.get(system, "")

    def look(key: str) -> Any:
        value = known[key] if key in known else known.get(key.removeprefix(first))
        if _is_open(value):
            raise UnresolvedError(key)
        return value

    return look


def _is_open(value: Any) -> bool:
    """Whether a value of theirs, or one within it, cannot be known here."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    is_reference = isinstance(value, str) and bool(UNRESOLVED.search(value))
    return isinstance(value, Unresolved) or is_reference or any(map(_is_open, inner))


def _leave_open(migration: Migration, chosen: groups.Chosen) -> None:
    """Opens what is trained where their file says it with a value that cannot be known."""
    said = {*migration.settings, *chosen, *(name for note in migration.notes for name in note.settings)}
    for note in migration.notes:
        for name in note.withholds:
            if name in DECIDES and name not in said:
                migration.open.setdefault(name, f"{note.key} = {note.value} ({note.why}), and says {name}")


def _names_of(system: str, kind: str) -> tuple[str, ...]:
    """The names of a system in the tables; those come first whose keys count where several have the same."""
    return SYSTEMS[system][::-1] if kind == "robot" and system == "verl" else SYSTEMS[system]


def note_of(
    key: str, value: Any, systems: Sequence[str], get: Lookup, usual_keys: set[str], migration: Migration
) -> Note:
    """Translates one key of a foreign configuration into a note; what is trained, and has no answer here, becomes open
    in the migration.

    Args:
        systems: names of one system in the tables; of rows with the same key that of the first counts.
        get: their other keys.
        usual_keys: keys of ours that every run has.
    """
    system = next(name for name, names in SYSTEMS.items() if systems[0] in names)
    note = _known(key, value, systems, system, get, usual_keys, migration)
    if not _is_open(value) or note.how == "harmless":
        return note
    withheld = _could_say(key, systems, get, usual_keys)
    if note.how == "nothing" and not withheld:
        return note
    why = "it is not set there" if plain(value) == "???" else "the reference cannot be resolved here"
    return Note(key, value, "refused", why=f"{why}: write its value", withholds=withheld)


def _could_say(key: str, systems: Sequence[str], get: Lookup, usual_keys: set[str]) -> tuple[str, ...]:
    """Our keys that a key of theirs may set, whatever its value is."""
    rows = sorted(find(key, systems), key=lambda row: systems.index(row.system))
    if not rows:
        return (key,) if key in usual_keys else ()
    notes = [_of_row(key, probe, rows[0], get) for probe in PROBES]
    more = rows[0].ours if any(note.how in ("refused", "extra") for note in notes) else ()
    return tuple(dict.fromkeys([*(name for note in notes for name in (*note.settings, *note.withholds)), *more]))


def _known(
    key: str, value: Any, systems: Sequence[str], system: str, get: Lookup, usual_keys: set[str], migration: Migration
) -> Note:
    """Says what becomes of a key whose value is known."""
    if key.startswith("="):  # a key of ours, which says what is no key there
        return Note(key, value, "derived", {key[1:]: value}, f"as {NAMES[system]} has it")
    family = family_of(system, key)
    if rows := sorted(find(key, systems), key=lambda row: systems.index(row.system)):
        note = _of_row(key, value, rows[0], get)
        if note.how == "refused" and family is not None and family.opens:
            migration.open.setdefault(family.opens, f"{key} = {value}: {note.why}")
        return note
    if key in usual_keys:
        empty = Note(key, value, "nothing", why="nothing is set")
        return Note(key, value, "same", {key: value}) if value is not None else empty
    if value in ({}, []):
        return Note(key, value, "nothing", why="nothing is set")
    if family is None:
        return Note(key, value, "unknown", why="no document of theirs explains it")
    if family.harmless:
        return Note(key, value, "harmless", why=family.why)
    if plain(value) in family.neutral:
        return Note(key, value, "nothing", why="it is off, or as it is here")
    if family.opens:
        migration.open.setdefault(family.opens, f"{key} = {value}: {family.why}")
    return Note(key, value, "refused", why=family.why)


def _of_row(key: str, value: Any, row: Row, get: Lookup) -> Note:
    try:
        said = translate_key(row, value, get)
    except UnresolvedError as error:
        return Note(
            key,
            value,
            "refused",
            why=f"it needs {error.key}, which cannot be resolved here",
            withholds=_follows(row, value, get),
        )
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
        return Note(key, value, "refused", why=f"{row.meaning}: its value, or one beside it, is none that it can have")
    return Note(key, value, said.how, said.settings, said.why)


def _follows(row: Row, value: Any, get: Lookup) -> tuple[str, ...]:
    """Our keys that follow from a key of theirs and from others, of which one cannot be resolved."""
    found: dict[str, Any] = {}
    for probe in PROBES:

        def guess(key: str, probe: Any = probe) -> Any:
            try:
                return get(key)
            except UnresolvedError:
                return probe

        with suppress(TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
            found |= translate_key(row, value, guess).settings
    return tuple(found) or row.ours


def _names_problems(key: str, systems: Sequence[str]) -> bool:
    """Whether a key names files of problems; also where its value could not be taken over."""
    return any("data.train_data_paths" in row.ours for row in find(key, systems))
