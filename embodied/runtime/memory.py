"""The memory of a process. Imports nothing."""

from __future__ import annotations


def proportional_memory(pid: int) -> int:
    """Returns the bytes of memory that a process accounts for, shared pages divided among their users (PSS); 0 if it is
    gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except OSError:
        return 0
