"""Limits for clients: sizes, rates, connections, times. Whoever goes beyond is slowed down or refused, alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerLimits:
    """Limits of a server. None of them is off."""

    max_bytes: int = 16 << 20  # size of a message
    max_pixels: int = 1 << 24  # pixels of a picture that is resized
    max_connections: int = 64
    max_connections_per_address: int = 32
    max_waiting: int = 64  # requests that wait for the policy
    rate: float = 200.0  # requests a second that an address may send for long
    burst: int = 50  # requests that it may send at once
    idle_s: float = 1800.0  # a connection without a request is closed after this
    first_request_s: float = 10.0  # time limit for the first request of a connection
    body_s: float = 30.0  # time limit for the body of a request
    send_s: float = 10.0  # time limit for a client to take an answer
    ping_s: float = 20.0  # time between two pings; one that is not answered within half of it closes the connection
    drain_s: float = 30.0  # time limit for answers that are under way when the server is told to end


class Rate:
    """Computes the wait before an address's next request: ``rate`` a second for long, at most ``burst`` at once.

    Each request is due ``1 / rate`` seconds after the one before, and may come up to ``burst`` such times early.

    Args:
        clock: seconds, never going back.
    """

    MOST = 10_000  # addresses that are remembered; those whose time has passed are forgotten beyond it

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._step, self._early, self._clock = 1 / rate, (burst - 1) / rate, clock
        self._due: dict[str, float] = {}

    def wait(self, address: str) -> float:
        """Count a request; returns the seconds until it may be answered."""
        now = self._clock()
        if len(self._due) > self.MOST:
            self._due = {known: due for known, due in self._due.items() if due > now}
        due = max(now, self._due.get(address, now))
        self._due[address] = due + self._step
        return max(0.0, due - self._early - now)

    def refuse(self, address: str) -> float:
        """Seconds until a request would be answered at once; it is counted only if that is now."""
        now = self._clock()
        left = max(0.0, self._due.get(address, now) - self._early - now)
        return left if left > 0 else self.wait(address)


class Places:
    """Counts taken places for connections: at most a number in all, and a number for each address."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most, self._most_per_address = most, most_per_address
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Number of places that are taken."""
        return self._taken.total()

    def take(self, address: str) -> bool:
        """Take a place; False if there is none."""
        if self.taken >= self._most or self._taken[address] >= self._most_per_address:
            return False
        self._taken[address] += 1
        return True

    def free(self, address: str) -> None:
        """Gives a place back."""
        self._taken[address] -= 1
        self._taken += Counter()  # drops addresses without a connection
