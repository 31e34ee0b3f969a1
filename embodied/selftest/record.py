"""What a self-test found, as plain values: ``selftest.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied.errors import RunFolderError
from embodied.lib.whole import write_whole
from embodied.selftest.parts import PARTS
from embodied.selftest.running import Result

FORMAT = 1
JSON, HTML = "selftest.json", "selftest.html"


def as_plain(
    options: Mapping[str, Any], machine: Mapping[str, Any], results: Sequence[Result], seconds: float, ended: str
) -> dict[str, Any]:
    """Makes the JSON object of a self-test's report.

    Args:
        options: device, minutes, parts.
        ended: ``complete``, ``running``, ``interrupted``, or ``refused``: no part began.
    """
    parts = [{**asdict(one), "meaning": PARTS[one.name].meaning} for one in results]
    counts = {status: sum(one.status == status for one in results) for status in ("passed", "failed", "not run")}
    status = "failed" if counts["failed"] else "passed" if counts["passed"] else "not run"
    return {
        "format": FORMAT, "status": status, "ended": ended, "counts": counts, "seconds": round(seconds, 1),
        "asked": dict(options), "machine": dict(machine), "parts": parts,
    }  # fmt: skip


def write(file: Path, text: str) -> None:
    """Writes a file whole or not at all. Raises :class:`RunFolderError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode(errors="replace"), shared=True)
    except OSError as error:
        raise RunFolderError(f"cannot write {file}: {error.strerror}", "name another folder: --out FOLDER") from error


def as_text(plain: Mapping[str, Any]) -> str:
    """Formats the JSON object of a self-test's report as text."""
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
