"""What a translation gives: groups, settings, what became of each key, and what a user has to decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

Settings = dict[str, Any]

GROUPS = {"env": ("/env@env.train", "/env@env.eval"), "env.eval": ("/env@env.eval",), "model": ("/model",)}
"""Group → where its file is put; ``env.eval`` is there where evaluations have another env than the training."""

HOWS = {
    "same": "taken over", "renamed": "renamed", "derived": "derived", "extra": "needs something more",
    "nothing": "said by something else, or asks for nothing", "refused": "refused",
    "unknown": "not known, and can change a number", "harmless": "not known, and cannot change a number",
}  # fmt: skip
"""What became of a key → how the report says it, in its order."""

OPEN, UNDECIDED = "???", "TO_BE_DECIDED"
"""Stand in the file for a group, and for the value of a key, that have to be decided: a run does not begin before."""


@dataclass(frozen=True)
class Note:
    """The outcome of one key of a foreign configuration: how it was translated, into which settings of
    ours, and why."""

    key: str
    value: Any
    how: str  # one of HOWS
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    withholds: tuple[str, ...] = ()  # our keys that it says, with a value that cannot be known


@dataclass
class Migration:
    """A foreign configuration (RLinf, verl, ROLL, Cosmos-RL, TRL) translated into ours: chosen groups, settings, and a
    note for each key.

    Args:
        groups: of :data:`GROUPS`, where their file says them.
        settings: our dotted keys and their values.
        open: our key, or group, that says what is trained and has no answer here → the reason. The file says so, and a
            run does not begin before the user has decided.
        remaining: what is still wrong with it, as the error of a run says; empty if it is a whole configuration.
        elsewhere: what a run would then find wrong with files, or with this machine.
        launch: machines, and processes on each, that their file asks for.
    """

    groups: dict[str, str]
    settings: Settings
    notes: list[Note]
    open: dict[str, str] = field(default_factory=dict)
    remaining: str = ""
    elsewhere: str = ""
    launch: tuple[int, int] = (1, 1)

    def as_yaml(self, stand_ins: Mapping[str, str] | None = None) -> str:
        """Returns the migrated configuration as the YAML text of an experiment file.

        Args:
            stand_ins: group → what stands for one that is open, to try the rest; None = it stays open.
        """
        groups = dict(self.groups) | {name: OPEN for name in self.open if name in GROUPS}
        settings = dict(self.settings)
        if stand_ins is None:
            settings |= {name: UNDECIDED for name in self.open if name not in GROUPS}
        else:
            groups |= {name: stand_ins[name] for name in self.open if name in GROUPS}
        lines = ["# @package _global_"]
        places = {place: groups[group] for group in GROUPS if group in groups for place in GROUPS[group]}
        if places:
            entries = [{f"override {place}": name} for place, name in places.items()]
            lines.append(yaml.safe_dump({"defaults": entries}, sort_keys=False).strip())
        text = yaml.safe_dump(_nested(settings), sort_keys=False, allow_unicode=True).strip() if settings else ""
        return "\n".join([*lines, *([text] if text else []), ""])

    def keys_of(self, how: str) -> list[str]:
        """Returns the foreign keys whose note has the outcome ``how`` (one of ``HOWS``)."""
        return [note.key for note in self.notes if note.how == how]

    def withheld(self) -> set[str]:
        """Returns our keys that the foreign file sets to values that cannot be known here."""
        return {name for note in self.notes for name in note.withholds} - set(self.settings)

    def drop(self, keys: Iterable[str]) -> None:
        """Takes settings out of the migration, and out of the notes on their keys."""
        gone = set(keys)
        self.settings = {key: value for key, value in self.settings.items() if key not in gone}
        self.notes = [
            replace(note, settings={name: one for name, one in note.settings.items() if name not in gone})
            for note in self.notes
        ]


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *path, name = key.split(".")
        inner = nested
        for part in path:
            inner[part] = inner = inner[part] if isinstance(inner.get(part), dict) else {}
        inner[name] = value
    return nested
