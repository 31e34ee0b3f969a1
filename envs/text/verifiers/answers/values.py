"""What an answer is read as."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


class NotUnderstood(Exception):
    """Raised where a part of an answer cannot be parsed. The whole is a text then."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts or is measured in: percent, degrees, money, m^2, apples.

    Two of one ``dimension`` are converted by ``factor``.
    """

    name: str
    dimension: str
    factor: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Answer:
    """A parsed answer, in a canonical form that can be compared.

    ``kind``: number, measure (in several units), expression (compared as it is written), relation, tuple, matrix, list,
    set, letter, clock, date, text.
    """

    kind: str
    key: str  # LaTeX of one spelling for equal answers, without unit and label
    value: Fraction | None = None  # value of a number
    unit: Unit | None = None
    label: str | None = None  # left side of an equation: x of x=5
    items: tuple[Answer, ...] = ()  # members of a list or set; order does not count

    @property
    def whole(self) -> str:
        """The canonical spelling (``key``) with unit and name."""
        unit = "" if self.unit is None else self.unit.name
        return f"{'' if self.label is None else self.label + '='}{self.key}{unit}"
