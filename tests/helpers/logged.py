"""Reads what a run has logged, without what a second run need not repeat."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

VARYING = re.compile(r"time/|memory/|.*_per_s$|rollout/batch_size_mean$")


def rows_of(folder: str | Path) -> list[dict[str, float]]:
    """The rows of ``metrics.jsonl``."""
    rows = map(json.loads, Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in row.items() if not VARYING.match(name)} for row in rows]


def lasting_meta(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's ``meta.json`` without what says of its table of tensors, which knows its folder's name."""
    meta: dict[str, Any] = json.loads((checkpoint / "meta.json").read_text(encoding="utf-8"))
    del meta["files"][".metadata"], meta["checksums"][".metadata"], meta["checksum"]
    return meta
