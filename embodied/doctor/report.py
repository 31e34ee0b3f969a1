"""Shows findings: a table on a terminal, lines elsewhere, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from embodied import __version__
from embodied.doctor.findings import Finding, worst

FORMAT = 1
COLOURS = {"ok": "green", "skipped": "dim", "warn": "yellow", "fail": "bold red"}


def as_json(findings: Sequence[Finding], seconds: float) -> str:
    """Returns an object with ``format``, ``embodied`` (version), ``status`` (the worst), ``seconds`` and ``findings``,
    each with ``name``, ``status``, ``found`` and ``fix`` (empty where there is nothing to do)."""
    told = {
        "format": FORMAT, "embodied": __version__, "status": worst(findings), "seconds": round(seconds, 1),
        "findings": [asdict(finding) for finding in findings],
    }  # fmt: skip
    return json.dumps(told, indent=2)  # ASCII, because a terminal of another encoding would change what it cannot show


def show(findings: Sequence[Finding], seconds: float, out: TextIO) -> None:
    """Prints all findings and a line that sums them up."""
    if out.isatty():
        Console(file=out).print(_table(findings))
    else:
        for finding in findings:
            print(f"{finding.status:7}  {finding.name}: {finding.found}", file=out)
            if finding.fix:
                print(f"         fix: {finding.fix}", file=out)
    print(summary(findings, seconds), file=out)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table("", "what", "found", "fix")
    for finding in findings:
        status = Text(finding.status, COLOURS[finding.status])
        table.add_row(status, Text(finding.name), Text(finding.found), Text(finding.fix))
    return table


def summary(findings: Sequence[Finding], seconds: float) -> str:
    """Formats how many findings there are of each status.

    >>> summary([Finding("disk", "ok", "9 GiB are free"), Finding("CUDA", "fail", "no GPU", "buy one")], 1.23)
    '1 ok, 1 fail; 1.2 s'
    """
    counts = {status: sum(finding.status == status for finding in findings) for status in COLOURS}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) + f"; {seconds:.1f} s"
