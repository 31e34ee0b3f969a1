"""CPU time of a process and of those that it has started, and what this machine computes with, as Linux says both."""

from __future__ import annotations

import os
import platform
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
CPUINFO = Path("/proc/cpuinfo")


def tree_seconds(pid: int) -> float | None:
    """Returns the CPU seconds of a process and its descendants, all threads; those that have ended count if their
    parent has waited for them. None where the kernel does not list the children of a process.

    A child that ends between two looks counts in neither of them, so the sum may fall for a moment.
    """
    if (own := _ticks(pid)) is None or not Path(f"/proc/{pid}/task/{pid}/children").exists():
        return None
    total, waiting = own, _children(pid)
    while waiting:
        child = waiting.pop()
        total += _ticks(child) or 0
        waiting += _children(child)
    return total / TICKS


def _ticks(pid: int) -> int | None:
    """Clock ticks of a process and of the children that it has waited for; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return sum(map(int, text.rpartition(")")[2].split()[11:15]))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="utf-8").split())
    except OSError:  # it, or the thread, has ended since it was listed
        pass
    return found


def processors(cpuinfo: Path = CPUINFO) -> str:
    """Returns how many processors this process may use, and of which kind: ``2 × Intel(R) Xeon(R) CPU @ 2.20GHz``."""
    return f"{len(os.sched_getaffinity(0))} × {processor(cpuinfo)}"


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Returns of which kind the processors of this machine are."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
