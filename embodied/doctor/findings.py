"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from embodied.errors import EmbodiedError

Status = Literal["ok", "skipped", "warn", "fail"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""From harmless to worst. skipped: it cannot be checked here, ``found`` says why."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found, e.g. ``("open files", "fail", "the run needs 900 …", "raise the limit …")``."""

    name: str
    status: Status
    found: str
    fix: str = ""  # what to do about it: a command, or a key; always there with warn and fail

    def __post_init__(self) -> None:
        if self.status in ("warn", "fail") and not self.fix:
            raise ValueError(f"{self.name}: '{self.status}' without a fix")


def of_error(name: str, error: EmbodiedError, status: Status = "fail") -> Finding:
    """The finding that an error is: in the words in which a run refuses."""
    return Finding(name, status, error.message, error.remedy)


def worst(findings: Iterable[Finding]) -> Status:
    """The worst status of all.

    >>> worst([Finding("disk", "ok", "9 GiB"), Finding("CUDA", "skipped", "no GPU")])
    'skipped'
    """
    return max((finding.status for finding in findings), key=STATUSES.index, default="ok")


def gib(value: float) -> str:
    """Says bytes for a person.

    >>> gib(3.25 * 2**30), gib(5 * 2**20)
    ('3.2 GiB', '5 MiB')
    """
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
