"""Which of several keys of theirs counts, where they say different things of the same key of ours."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from embodied.migrate.result import Note

BEFORE = (
    "env.train.", "env.eval.", "rollout.sampling_params.", "rollout.sampling_config.", "actor.model.", "actor.optim.",
    "actor_infer.", "data.", "critic.",
)  # fmt: skip
"""Beginnings of keys that count before others: what a part of theirs reads itself comes before what it is made from."""


def settle(notes: Sequence[Note], defaults: Container[str]) -> list[Note]:
    """Resolves contradicting notes about the keys of a foreign configuration, whatever their order was; returns the
    notes to keep.

    Args:
        defaults: keys that their file leaves out; what it says comes before them.
    """
    ordered = sorted(notes, key=lambda note: (note.key in defaults, _place(note.key), note.key))
    taken: dict[str, Note] = {}  # also what is withheld: nothing else takes the place of a value that is not known
    settled: dict[str, Note] = {}
    for note in ordered:
        clash = [name for name, one in note.settings.items() if name in taken and _other(taken[name], name, one)]
        if clash and note.key in defaults:
            kept = {name: one for name, one in note.settings.items() if name not in taken}
            note = replace(note, settings=kept, how=note.how if kept else "nothing")
        elif clash:
            first = taken[clash[0]]
            said = f"={first.settings[clash[0]]}" if clash[0] in first.settings else ", which cannot be known here"
            why = f"{first.key} says {clash[0]}{said}, and comes before it"
            note = replace(note, how="refused", settings={}, why=why)
        for name in (*note.settings, *note.withholds):
            taken.setdefault(name, note)
        settled[note.key] = note
    return [settled[note.key] for note in notes]


def _place(key: str) -> int:
    places = [number for number, start in enumerate(BEFORE) if key.startswith(start)]
    return places[0] if places else len(BEFORE)


def _other(note: Note, name: str, value: object) -> bool:
    """Whether a note says something else of a key, or withholds it."""
    return name not in note.settings or note.settings[name] != value
