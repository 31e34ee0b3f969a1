"""Shows the log of a process that ended, in an error."""

from __future__ import annotations

from pathlib import Path

LOG_TAIL = 4000  # characters of a log that an error shows


def tail(log: Path) -> str:
    """Returns the end of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return text[-LOG_TAIL:] or "(its log is empty)"
