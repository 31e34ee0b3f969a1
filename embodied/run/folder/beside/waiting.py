"""Waits at the end of a run for programs that it has started."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from embodied.runtime.signals import StopSignal

LOOK_S = 0.05  # pause between two looks at whether a program has ended, or a stop signal has come


def wait_for(ready: Callable[[], bool], stop: StopSignal, stopped_s: float, longest_s: float = math.inf) -> bool:
    """Polls ``ready`` at the end of a run until it is true or time is up; returns whether it is ready.

    Args:
        stopped_s: how long it may take after a stop signal, if so much time is granted.
        longest_s: how long it may take in all.
    """
    end = time.monotonic() + longest_s
    stopped = False
    while not ready():
        if stop.wanted and not stopped:
            stopped, end = True, min(end, time.monotonic() + stopped_s)
        if time.monotonic() >= end or not stop.grants(0.0):
            return False
        time.sleep(LOOK_S)
    return True
