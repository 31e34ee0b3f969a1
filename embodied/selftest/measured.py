"""What a part of the self-test says."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One line of a part, e.g. ``("openvla_oft: log-probs", 3e-6, "nats", "at most 0.0002")``."""

    what: str
    found: float | int | str  # a number that is not finite is text
    unit: str = ""
    allowed: str = ""  # empty: a figure, which nothing is held against
    holds: bool = True
    skipped: bool = False  # found says why it was not measured


class NotRun(Exception):
    """A part cannot be run here; the text says why."""


def at_most(what: str, found: float, most: float, unit: str = "") -> Measured:
    """Holds a number against a limit. One that is not finite is beyond every limit.

    >>> at_most("gap", 0.5, 1.0).holds, at_most("gap", float("nan"), 1.0)
    (True, Measured(what='gap', found='nan', unit='', allowed='at most 1', holds=False, skipped=False))
    """
    return Measured(what, _plain(found), unit, f"at most {most:.4g}", math.isfinite(found) and found <= most)


def at_least(what: str, found: float, least: float, unit: str = "") -> Measured:
    """Holds a number against a lower limit. One that is not finite is below it."""
    return Measured(what, _plain(found), unit, f"at least {least:.4g}", math.isfinite(found) and found >= least)


def none_of(what: str, found: int, of: int) -> Measured:
    """Says how many of so many are wrong; none may be. Of none at all, nothing holds."""
    return Measured(what, found, f"of {of:,}", "0", found == 0 and of > 0)


def few_of(what: str, found: int, of: int, share: float) -> Measured:
    """Says how many of so many are wrong, where a share of them may be."""
    return Measured(what, found, f"of {of:,}", f"at most {share * of:.4g}", of > 0 and found <= share * of)


def figure(what: str, found: float | int | str, unit: str = "") -> Measured:
    """Gives a number that nothing is held against."""
    return Measured(what, found if isinstance(found, str) else _plain(found), unit)


def skipped(what: str, why: str) -> Measured:
    """Says why something was not measured."""
    return Measured(what, why, skipped=True)


def _plain(found: float) -> float | str:
    return found if math.isfinite(found) else str(found)
