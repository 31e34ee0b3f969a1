"""Says how a process ended, in words for an error."""

from __future__ import annotations

import signal
from pathlib import Path

LOG_TAIL = 4000  # characters of a log that an error shows


def how_it_ended(code: int) -> str:
    """Says what a return code of :mod:`subprocess` means; a negative one is a signal.

    >>> how_it_ended(-9), how_it_ended(1)
    ('was killed by SIGKILL', 'ended with status 1')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def tail(log: Path) -> str:
    """Returns the end of a log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return text[-LOG_TAIL:] or "(its log is empty)"
