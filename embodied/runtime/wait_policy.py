"""Sets how the CPU threads of a computation wait for each other."""

from __future__ import annotations

import os

SPINS = 1000
"""Turns of the loop in which a thread of GNU's OpenMP waits before it sleeps: some microseconds, about what waking
costs. Measured in ``benchmarks/busy_host.py``."""


def cores_are_shared() -> None:
    """Asks OpenMP, before torch loads it, to let waiting threads sleep at barriers, because other processes
    need the cores.

    By default they spin for milliseconds. Where another process takes a core, the thread that computes there is late at
    each of thousands of barriers, and the others burn their cores meanwhile. A policy that the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))  # only GNU's reads it; others sleep at once
