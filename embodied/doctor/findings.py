"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from embodied.errors import EmbodiedError

Status = Literal["ok", "skipped", "warn", "fail"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""From harmless to worst. skipped: it cannot be checked here, ``found`` says why."""


@dataclass(frozen=True)
class Finding:
    """One result of a check, e.g. ``("open files", "fail", "the run needs 900 …", "raise the limit …")``."""

    name: str
    status: Status
    found: str
    fix: str = ""  # a command or a key; never empty with warn and fail

    def __post_init__(self) -> None:
        if self.status in ("warn", "fail") and not self.fix:
            raise ValueError(f"{self.name}: '{self.status}' without a fix")


def of_error(name: str, error: EmbodiedError, status: Status = "fail") -> Finding:
    """Makes the finding of an error: in the words in which a run refuses."""
    return Finding(name, status, error.message, error.remedy)


def once(findings: Sequence[Finding]) -> list[Finding]:
    """Says a cause once that several checks met: those with the same fix for the same reason, whatever the words before
    its first colon. The renderer's finding says it with the worst status of all; the others refer to it.

    >>> said = Finding("Sim", "fail", "no device: no driver", "!"), Finding("renderer X", "fail", "X: no driver", "!")
    >>> [(finding.name, finding.status) for finding in once(said)], once(said)[0].found
    ([('Sim', 'skipped'), ('renderer X', 'fail')], 'refused for the reason that renderer X gives')
    """
    causes: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        if finding.fix and (reason := finding.found.partition(": ")[2]):
            causes.setdefault((reason, finding.fix), []).append(finding)
    said = list(findings)
    for same in causes.values():
        if len({finding.name for finding in same}) < 2:
            continue
        first = next((finding for finding in same if finding.name.startswith("renderer ")), None)
        if first is None:
            continue
        for number, finding in enumerate(findings):
            if finding is first:
                said[number] = replace(first, status=worst(same))
            elif any(finding is other for other in same):
                said[number] = Finding(finding.name, "skipped", f"refused for the reason that {first.name} gives")
    return said


def worst(findings: Iterable[Finding]) -> Status:
    """Returns the worst status of all findings.

    >>> worst([Finding("disk", "ok", "9 GiB"), Finding("CUDA", "skipped", "no GPU")])
    'skipped'
    """
    return max((finding.status for finding in findings), key=STATUSES.index, default="ok")


def gib(value: float) -> str:
    """Formats bytes in GiB for a person.

    >>> gib(3.25 * 2**30), gib(5 * 2**20)
    ('3.2 GiB', '5 MiB')
    """
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
