"""Keys of other systems (RLinf, verl, ROLL, Cosmos-RL, TRL), and our keys that answer them.

The tables: ``foreign_keys.tsv`` has the keys that their documents explain, ``foreign_more.tsv`` those that only their
recipes have. One row says: system, key, class, our key (``A + B`` answer together, ``-`` none), meaning (of class
``out`` the reason), default there. Brackets behind a key say in which file it stands, or which backend reads it.
Lines that begin with ``#`` say what was compared with which of their files.

The other columns say something of our key, in the first row that has it alone:

| column | says |
|---|---|
| says_nothing | values (JSON) with which it keeps its default |
| values | what values of other systems are here (JSON: theirs → our settings) |
| no_effect | why a value other than the default changes nothing |
| accepted | values (JSON) that it may have beside null, because they ask for nothing: it is dropped |
| why, fix, same_as | why it can have no other value; what to do instead; keys whose values it may have, too |
| place | in which order several such refusals are listed |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TABLES = ("foreign_keys.tsv", "foreign_more.tsv")
NAMES = {
    "rlinf": "RLinf", "rlinf-old": "RLinf", "verl": "verl", "simplevla-rl": "SimpleVLA-RL", "roll": "ROLL",
    "cosmos-rl": "Cosmos-RL", "trl": "TRL",
}  # fmt: skip
"""System → how it is written in a sentence."""
LEFT_OFF = {"verl": "actor_rollout_ref.", "simplevla-rl": "actor_rollout_ref."}
"""System → the first part of its keys that users leave out."""
SIDES = ("env.train.", "env.eval.")


@dataclass(frozen=True)
class Row:
    """A key of another system in the table of translations, with our keys."""

    system: str
    key: str  # name without its brackets
    where: str  # text in the brackets, else ""
    kind: str  # must | should | extra | out
    ours: tuple[str, ...]  # empty of class out
    meaning: str
    default: str

    @property
    def name(self) -> str:
        """Name of the system, as sentences have it."""
        return NAMES[self.system]

    @property
    def full(self) -> str:
        """The key with its section, as the table has it."""
        return f"{self.key} [{self.where}]" if self.where else self.key


@cache
def _cells() -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of both tables. Rows that say nothing in the last columns are shorter."""
    names: list[str] = []
    lines: list[list[str]] = []
    for table in TABLES:
        text = (files(__package__) / table).read_text(encoding="utf-8")
        names, *more = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
        lines += more
    return names, lines


@cache
def rows() -> tuple[Row, ...]:
    """Reads all rows of the tables of other systems' keys."""
    read = []
    for system, name, kind, our_key, meaning, default, *_ in _cells()[1]:
        key, _, where = name.partition(" [")
        ours = () if our_key == "-" else tuple(our_key.split(" + "))
        read.append(Row(system, key, where.rstrip("]"), kind, ours, meaning, default))
    return tuple(read)


def column(name: str) -> dict[str, str]:
    """Returns a column of the key table by our keys, without keys whose cell is empty."""
    names, lines = _cells()
    ours, place = names.index("our_key"), names.index(name)
    return {cells[ours]: cells[place] for cells in lines if len(cells) > place and cells[place]}


@cache
def _spellings() -> Mapping[str, tuple[Row, ...]]:
    """All ways in which a key may be written → its rows."""
    found: dict[str, list[Row]] = {}
    for row in rows():
        found.setdefault(row.key, []).append(row)
        if (first := LEFT_OFF.get(row.system)) and row.key.startswith(first):
            found.setdefault(row.key.removeprefix(first), []).append(row)
        if row.where.startswith("env/"):
            for side in SIDES:
                found.setdefault(side + row.key, []).append(_of_side(row, side))
    return {key: tuple(same) for key, same in found.items()}


def _of_side(row: Row, side: str) -> Row:
    ours = tuple(key for key in row.ours if key.startswith(side) or not key.startswith(SIDES))
    return Row(row.system, row.key, row.where, row.kind, ours, row.meaning, row.default)


def find(key: str, systems: Iterable[str] = NAMES) -> tuple[Row, ...]:
    """Looks up the table rows of another system's key as a user writes it; of systems in which it is the same, one row
    each."""
    wanted = set(systems)
    return tuple(row for row in _spellings().get(key, ()) if row.system in wanted)


def by_last_name(name: str) -> tuple[Row, ...]:
    """Looks up the table rows whose key ends with this name, if all have the same answer; else none."""
    same = [row for row in rows() if row.key.rpartition(".")[2] == name]
    return tuple(same) if len({row.ours for row in same}) == 1 else ()


@cache
def answers() -> Mapping[str, tuple[Row, ...]]:
    """Returns the table rows that each of our keys stands for."""
    found: dict[str, list[Row]] = {}
    for row in rows():
        for key in row.ours:
            found.setdefault(key, []).append(row)
    return {key: tuple(same) for key, same in found.items()}


def answered(key: str) -> str:
    """Lists other systems' names of our key, where they differ: ``RLinf ratio_clip_eps; verl clip_ratio``."""
    return "; ".join(f"{system} {', '.join(keys)}" for system, keys in names_elsewhere(key).items())


def names_elsewhere(key: str) -> dict[str, list[str]]:
    """Returns other systems' names of our key, by system, where they differ."""
    names: dict[str, list[str]] = {}
    for row in answers().get(key, ()):
        if row.key != key and not (row.where.startswith("env/") and key == f"{key.rpartition('.')[0]}.{row.key}"):
            same = names.setdefault(row.name, [])
            if row.key not in same:
                same.append(row.key)
    return names


def joined(words: Sequence[str], last: str = "and") -> str:
    """Joins words for a sentence: ``a, b and c``."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
