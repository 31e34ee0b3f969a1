"""What the benchmarks share: CPU time of a process tree, facts of the machine, and where results go."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used so far, all threads (schedstat counts nanoseconds)."""
    return sum(_thread_ns(pid) for pid in pids) / 1e9


def _thread_ns(pid: int) -> int:
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # it has ended since it was listed
        return 0
    return sum(int((read_proc(task / "schedstat") or "0").split()[0]) for task in tasks)


def read_proc(path: Path) -> str:
    """A file of a process or thread; empty if that has ended since it was listed."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def minor_faults(pids: Iterable[int]) -> int:
    """Pages that these processes have touched for the first time so far."""
    return sum(int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[7]) for pid in pids)


def pss_bytes(pids: Iterable[int]) -> int:
    """Memory of these processes, shared pages divided among their users."""
    rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8") for pid in pids)
    return sum(int(line.split()[1]) * 1024 for text in rollups for line in text.splitlines() if line.startswith("Pss:"))


def descendants(pid: int) -> list[int]:
    """``pid`` and all processes below it."""
    children = read_proc(Path(f"/proc/{pid}/task/{pid}/children")).split()
    return [pid, *(found for child in children for found in descendants(int(child)))]


@contextmanager
def prioritised(pids: Callable[[], Iterable[int]]) -> Iterator[None]:
    """Context in which the sessions of these processes, and of all that they start, have the share of the cores that
    this one's session has."""
    over = threading.Event()

    def hurry() -> None:
        while not over.wait(0.5):
            _same_priority(pids())

    thread = threading.Thread(target=hurry, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _same_priority(pids: Iterable[int]) -> None:
    """Does nothing where the kernel has no autogroups."""
    if own := read_proc(Path("/proc/self/autogroup")).split()[-1:]:
        for pid in (below for top in pids for below in descendants(top)):
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(own[0], encoding="utf-8")


def begin(args: argparse.Namespace) -> dict[str, Any]:
    """Threads, seed and device as ``args`` of a benchmark of the model say; facts of the machine."""
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    facts = machine(["torch", "transformers", "peft"])
    if args.device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(args.device)
    return facts


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Facts that a reader needs to place a number."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, encoding="utf-8"
    ).stdout.strip()
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "commit": commit,
        "cpu": model,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def is_kept(value: float, sign: str, limit: float) -> bool:
    return value >= limit if sign == ">=" else value <= limit


def judge(values: Mapping[str, float], bars: Mapping[str, tuple[str, float]]) -> dict[str, bool]:
    """Print each value with its bar, if it has one; which bars are kept.

    Args:
        bars: ``(">=" or "<=", limit)`` by the value's name.
    """
    kept = {name: is_kept(value, *bars[name]) for name, value in values.items() if name in bars}
    for name, value in values.items():
        sign, limit = bars.get(name, ("", 0.0))
        said = f"  (bar {sign} {limit:g}: {'kept' if kept[name] else 'MISSED'})" if name in kept else ""
        print(f"  {name}: {value:.3g}{said}", flush=True)
    return kept


def stored(name: str) -> dict[str, Any]:
    """Reads what :func:`save` wrote before; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def save(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path
