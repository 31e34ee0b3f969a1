"""The memory of processes, and what is left of the machine's."""

from __future__ import annotations

import resource
from pathlib import Path


def proportional_memory(pid: int) -> int:
    """Returns the bytes of memory that a process accounts for, shared pages divided among their users (PSS); 0 if it is
    gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except OSError:
        return 0


def free_memory() -> int | None:
    """Returns the bytes that this machine, or the container, has left without swapping; None if nothing tells it."""
    known = [size for size in (available_memory(), container_memory()) if size is not None]
    return min(known, default=None)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Returns the bytes that can be allocated without swapping; None where the kernel does not say it."""
    try:
        lines = meminfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def address_limit() -> int | None:
    """Returns the bytes of address space that a process may have (``ulimit -v``); None without a limit."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def container_memory(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Returns the bytes that the control groups of this process let it still take; None without a limit."""
    left: list[int] = []
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / controllers
        names = ("memory.max", "memory.current") if not controllers else (
            "memory.limit_in_bytes", "memory.usage_in_bytes",
        )  # fmt: skip
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            left += _left_in(group, *names)
            if group == top:
                break
    return min(left, default=None)


def _left_in(group: Path, limit: str, used: str) -> list[int]:
    try:
        most, now = (group / limit).read_text(encoding="utf-8").strip(), int((group / used).read_text(encoding="utf-8"))
        cached = [
            int(x.split()[1])
            for x in (group / "memory.stat").read_text(encoding="utf-8").splitlines()
            if "inactive_file " in x
        ]
    except (OSError, ValueError):
        return []
    if not most.isdigit() or int(most) >= 2**60:  # "max", or a version that says no limit so
        return []
    return [max(0, int(most) - now + max(cached, default=0))]
