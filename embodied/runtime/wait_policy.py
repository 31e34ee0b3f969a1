"""How the CPU threads of a computation wait for each other."""

from __future__ import annotations

import os


def cores_are_shared() -> None:
    """Asks OpenMP, before torch loads it, to let threads sleep while they wait for others at a barrier.

    By default they spin for milliseconds. Where another process takes a core, the thread that computes there is late at
    each of thousands of barriers, and the others burn their cores meanwhile (``benchmarks/busy_host.py``). A value that
    the user has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
