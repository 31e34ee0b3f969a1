"""Keys of theirs that no row of the tables has, in families: ``families.tsv``.

A row says: system (``*`` = every), pattern, what becomes of its keys, values that ask for nothing, reason. What becomes
of them: ``harmless`` = they cannot change a number; ``refused``; ``open KEY`` = refused, and it is a part of what is
trained, so that KEY has to be decided. The first row that fits counts.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from importlib.resources import files

from embodied.schema.others.tables import NAMES, find

TABLE = "families.tsv"
TRAINING = (
    "algorithm.", "actor.optim.", "actor.lr_sched.", "actor.global_batch_size", "data.rollout_batch_size",
    "data.max_prompt_length", "runner.max_epochs", "runner.max_steps", "runner.seed",
)  # fmt: skip
"""Beginnings of keys of ours that change numbers, in whichever family the key of theirs is."""


@dataclass(frozen=True)
class Family:
    """A pattern of another system's keys that are all answered alike: harmless, refused, or open until the
    user decides."""

    system: str
    pattern: str
    says: str  # harmless | refused | open KEY
    neutral: tuple[str, ...]  # values that ask for nothing, as foreign_said.plain has them
    why: str

    @property
    def harmless(self) -> bool:
        """Whether these keys cannot change a number of a run."""
        return self.says == "harmless"

    @property
    def opens(self) -> str:
        """The key, or group, of ours that has to be decided; empty if none."""
        return self.says.removeprefix("open ") if self.says.startswith("open ") else ""


@cache
def families() -> tuple[Family, ...]:
    """Reads all rows of the table of key families."""
    text = (files(__package__) / TABLE).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(
        Family(row["system"], row["pattern"], row["says"], tuple(row["neutral"].split("|")), row["why"]) for row in rows
    )


@cache
def _compiled() -> tuple[tuple[Family, re.Pattern[str]], ...]:
    return tuple((family, re.compile(translate(family.pattern))) for family in families())


def family_of(system: str, key: str) -> Family | None:
    """Returns the family (:class:`Family`) that a key of ``system`` belongs to; None if it has none."""
    return next((one for one, fits in _compiled() if one.system in ("*", system) and fits.match(key)), None)


def reason_of(key: str) -> str:
    """Returns why a key of another system is no key here, as a sentence; empty where no row is of it alone."""
    rows = [one for one in families() if one.pattern == key and one.system in NAMES]
    return " ".join(f"{NAMES[one.system]}'s key is left out here: {one.why}." for one in rows)


def can_change_a_number(system: str, key: str) -> bool:
    """Returns whether a key of ``system`` might change a number of a run; False only for those that are
    known not to."""
    if any(name.startswith(TRAINING) for row in find(key) for name in row.ours):
        return True
    family = family_of(system, key)
    return family is None or not family.harmless
