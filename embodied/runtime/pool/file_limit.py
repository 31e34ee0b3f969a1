"""Counts the files that a process of a run has open at once, and raises its limit (``ulimit -n``) for them.

To the kernel a socket, an eventfd or a watched process is an open file too. The numbers below are those of the
launching process, and ``tests/runtime/test_file_limit.py`` compares them with ``/proc/self/fd``. A worker opens few.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from embodied.errors import ConfigError

WORKER = 6  # the pool's files for one worker: pidfd, socket, two eventfds, its rings' memory and mmap's copy of that
POOL = 3  # the pool's other files: the epoll, the slab and mmap's copy of that
RANK = 4  # gloo's sockets to one other process of the run
RESERVE = 128
"""Files for everything else: a worker that is being started, metrics, checkpoints, data files. 7 were seen without
torchrun, 13 with it; the rest is left for the libraries and drivers of GPUs, which were not counted."""


@dataclass(frozen=True)
class OpenFiles:
    """File descriptors that a process of the run will open, beside those that it has open now."""

    workers: int
    each: int  # files for one worker
    others: int

    @property
    def needed(self) -> int:
        return open_now() + self.workers * self.each + self.others


def open_now() -> int:
    """Counts the file descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1  # the listing opens one


def check(files: OpenFiles) -> int:
    """Returns how many file descriptors the run needs. Raises :class:`ConfigError` if the hard limit is lower; changes
    nothing."""
    needed, hard = files.needed, limits()[1]
    if needed > hard:
        raise _too_low(files, needed, int(hard))
    return needed


def allow(files: OpenFiles) -> None:
    """Raises this process's soft limit of open files to what is needed, if the hard one lets it.

    Workers inherit the raised limit. It does them no harm: ``select()`` fails for descriptors from 1024 on, whatever
    the limit, and a worker opens few, with the lowest free numbers. The runtime itself uses epoll and poll. The limit
    is raised no further than needed, because some programs walk through all numbers below it, and a hard limit may be a
    billion (10⁹).

    Raises:
        ConfigError: the hard limit is lower than that.
    """
    needed = check(files)
    if needed > limits()[0]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def limits() -> tuple[float, float]:
    """Returns this process's soft and hard limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return tuple(float("inf") if x == resource.RLIM_INFINITY else x for x in (soft, hard))  # type: ignore[return-value]


def _too_low(files: OpenFiles, needed: int, hard: int) -> ConfigError:
    fits = (hard - needed) // files.each + files.workers  # workers that fit beside all else
    fewer = f", or lower env.num_workers so that there are at most {fits} in all" if fits >= 1 else ""
    others = needed - files.workers * files.each
    return ConfigError(
        f"the run needs {needed} open files in each process, and {hard} are allowed (the hard limit): "
        f"{files.workers} env workers take {files.each} each, everything else {others}",
        f"raise the hard limit to {needed} or more (ulimit -Hn {needed} as root, LimitNOFILE={needed} of a systemd "
        f"unit, docker run --ulimit nofile={needed}){fewer}",
    )
