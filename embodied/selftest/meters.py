"""Seconds and memory of calls on a device."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from embodied.lib.memory import trim


def seconds_of(call: Callable[[], Any], count: int, device: torch.device) -> float:
    """Times ``count`` calls, with the work that they leave to the device; returns seconds."""
    wait(device)
    started = time.perf_counter()
    for _ in range(count):
        call()
    wait(device)
    return time.perf_counter() - started


def wait(device: torch.device) -> None:
    """Waits until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[float]]:
    """Context that measures peak memory: yields a list that afterwards holds the peak in bytes, of torch's tensors on a
    GPU, of the process on a CPU."""
    peak: list[float] = []
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        trim()  # keeps memory that was freed earlier out of this peak
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # sets VmHWM back
    yield peak
    peak.append(torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident_peak())


def allocated(device: torch.device) -> int:
    """Returns the bytes of tensors on a GPU now; 0 on a CPU, where they are not counted apart."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _resident_peak() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    shown = next((line for line in lines if line.startswith("VmHWM")), None)
    kilobytes = int(shown.split()[1]) if shown else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024.0 * kilobytes
