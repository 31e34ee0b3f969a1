"""Memory, shared memory, open files, disk, and processes that a run has left: what the kernel tells."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embodied.doctor.findings import Finding, gib, of_error
from embodied.errors import EmbodiedError
from embodied.lib.cache import cache_folder
from embodied.run.folder.folder import check_writable, nearest_folder
from embodied.runtime.memory import available_memory, container_memory
from embodied.runtime.pool import file_limit
from embodied.runtime.pool.placement import START

LEAST_MEMORY, LITTLE_MEMORY = 2**30, 4 * 2**30
"""Bytes. A worker of LIBERO takes 1.4 to 1.8 GB for a moment while it builds its first task."""
LEAST_DISK, LITTLE_DISK = 2**29, 5 * 2**30
LITTLE_SHM = 64 * 2**20  # bytes; what docker gives a container that asks for no more
FEWER = "close other programs, or start fewer workers: env.num_workers"


def memory(limit: int | None = None) -> Iterator[Finding]:
    """Checks free memory, and what a container may have of it.

    Args:
        limit: bytes that the container may still take; None = its control group is asked.
    """
    free = available_memory()
    if free is None:
        yield Finding("memory", "skipped", "the kernel does not say what is left (no /proc/meminfo)")
        return
    limit = container_memory() if limit is None else limit
    said = f"{gib(free)} are free"
    if limit is not None and limit < free:
        said += f", and the limit of this container leaves {gib(limit)} of it (its control group)"
        free = limit
    if free < LITTLE_MEMORY:
        more = "" if limit is None or limit > free else "; or give the container more (docker run --memory)"
        yield Finding("memory", "fail" if free < LEAST_MEMORY else "warn", said, FEWER + more)
    else:
        yield Finding("memory", "ok", said)


def shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Checks whether memory can be shared as the slab does it, and the room that NCCL finds in ``/dev/shm``."""
    size = 2**24
    try:
        fd = os.memfd_create("doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE).close()
        finally:
            os.close(fd)
    except OSError as error:
        yield Finding(
            "shared memory", "fail", f"workers cannot share memory with the run (memfd_create): {error.strerror}",
            "run outside of this sandbox, or allow memfd_create and mmap in it (docker run --security-opt)",
        )  # fmt: skip
    else:
        yield Finding("shared memory", "ok", "the slab's kind of memory (memfd) works; it takes nothing of /dev/shm")
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    if free < LITTLE_SHM:
        yield Finding(
            "/dev/shm", "warn", f"{gib(free)} are free in {folder}; NCCL between GPUs and vLLM take it, a run without "
            "them does not", "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm as root",
        )  # fmt: skip


def open_files() -> Iterator[Finding]:
    """Checks whether a worker for each core may have its files open."""
    files = file_limit.OpenFiles(os.cpu_count() or 1, file_limit.WORKER, file_limit.POOL + file_limit.RESERVE)
    needed = file_limit.check(files)
    soft, hard = ("no limit" if limit == float("inf") else f"{limit:,.0f}" for limit in file_limit.limits())
    said = f"{needed:,} are needed with a worker for each core; limits: soft {soft} (a run raises it), hard {hard}"
    yield Finding("open files", "ok", said)


def disk(run_folder: str = "runs") -> Iterator[Finding]:
    """Checks room and permission where runs, temporary files and the cache lie."""
    try:
        check_writable(Path(run_folder))
        cache = cache_folder(".")
    except EmbodiedError as error:
        yield of_error("disk", error)
        cache = Path(tempfile.gettempdir())
    places = {"runs": Path(run_folder), "temporary files": Path(tempfile.gettempdir()), "cache": cache}
    for what, path in places.items():
        yield room(
            f"disk of {what}", nearest_folder(path), LEAST_DISK, LITTLE_DISK if what == "runs" else 2 * LEAST_DISK
        )


def room(name: str, folder: Path, least: float, little: float, why: str = "") -> Finding:
    """Checks free bytes on a disk: ``least`` is needed, ``little`` is advised."""
    free = shutil.disk_usage(folder).free
    said = f"{gib(free)} are free at {folder}{why}"
    if free >= little:
        return Finding(name, "ok", said)
    keys = {"disk of temporary files": "TMPDIR", "disk of cache": "XDG_CACHE_HOME"}
    elsewhere = f"set {keys[name]} to another disk" if name in keys else "set runner.output_dir to another disk"
    return Finding(name, "fail" if free < least else "warn", said, f"free space there, or {elsewhere}")


@dataclass(frozen=True)
class Process:
    """A process of this machine: its pid, parent and command line."""

    pid: int
    parent: int
    command: tuple[str, ...]


def processes(proc: Path = Path("/proc")) -> list[Process]:
    """Lists all processes of this machine that can be seen."""
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            parent = int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has ended
        found.append(Process(int(folder.name), parent, tuple(command)))
    return found


def stale_workers(seen: Iterable[Process] | None = None) -> Iterator[Finding]:
    """Looks for env workers whose launcher is gone. They hold memory, a core, and maybe a GPU."""
    known = {process.pid: process for process in (processes() if seen is None else seen)}
    tail = str(Path(*START.parts[-4:]))
    workers = [p for p in known.values() if any(a.endswith(tail) for a in p.command) and "--safe-stop" not in p.command]
    stale = [worker for worker in workers if not _launches(known.get(worker.parent))]
    if stale:
        pids = " ".join(str(worker.pid) for worker in stale)
        yield Finding(
            "stale workers", "warn", f"{len(stale)} env workers outlived their run: pid {pids}", f"kill -9 {pids}"
        )
    else:
        yield Finding("stale workers", "ok", f"none; {len(workers)} env workers belong to runs that go on")


def _launches(parent: Process | None) -> bool:
    return parent is not None and bool(parent.command) and "python" in Path(parent.command[0]).name
