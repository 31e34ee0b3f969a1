"""What a part of the self-test says."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One measurement of a self-test's part, with the limit that it is held against, e.g. ``("openvla_oft: log-probs",
    3e-6, "nats", "at most 0.0002")``."""

    what: str
    found: float | int | str  # a number that is not finite is text
    unit: str = ""
    allowed: str = ""  # empty: a figure, which nothing is held against
    holds: bool = True
    skipped: bool = False  # found says why it was not measured


class NotRun(Exception):
    """Raised by a part that cannot be run on this machine; the text says why."""


def at_most(name: str, value: float, most: float, unit: str = "") -> Measured:
    """Makes a measurement that holds if the number is at most ``most``. One that is not finite is beyond every limit.

    >>> at_most("gap", 0.5, 1.0).holds, at_most("gap", float("nan"), 1.0)
    (True, Measured(what='gap', found='nan', unit='', allowed='at most 1', holds=False, skipped=False))
    """
    return Measured(name, _plain(value), unit, f"at most {most:.4g}", math.isfinite(value) and value <= most)


def at_least(name: str, value: float, least: float, unit: str = "") -> Measured:
    """Makes a measurement that holds if the number is at least ``least``. One that is not finite is below it."""
    return Measured(name, _plain(value), unit, f"at least {least:.4g}", math.isfinite(value) and value >= least)


def none_of(name: str, wrong: int, of: int) -> Measured:
    """Says how many of ``of`` things are wrong; the measurement holds if none is. Of no things at all, it
    does not hold."""
    return Measured(name, wrong, f"of {of:,}", "0", wrong == 0 and of > 0)


def few_of(name: str, wrong: int, of: int, share: float) -> Measured:
    """Makes a measurement that holds if at most a share of ``of`` things is wrong."""
    return Measured(name, wrong, f"of {of:,}", f"at most {share * of:.4g}", of > 0 and wrong <= share * of)


def figure(name: str, value: float | int | str, unit: str = "") -> Measured:
    """Makes a measurement without a limit: a number to be read."""
    return Measured(name, value if isinstance(value, str) else _plain(value), unit)


def skipped(name: str, why: str) -> Measured:
    """Makes the entry of a measurement that was not taken, with the reason."""
    return Measured(name, why, skipped=True)


def _plain(found: float) -> float | str:
    return found if math.isfinite(found) else str(found)
