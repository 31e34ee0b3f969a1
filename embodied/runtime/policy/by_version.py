"""The policy port of a rollout in which weights of several versions act: a call has requests of one version alone.

    queue: 4 4 5 4 5 ──▶ weights of 4, their requests ──▶ weights of 5, their requests ──▶ …

The earliest version comes first: an update waits for its episodes before those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from embodied.runtime.policy.policy_port import Draw, PolicyPort, Request


class ByVersion(PolicyPort):
    """A policy port that answers requests version by version.

    Args:
        port: answers the requests of a version, in passes that keep nothing from one to the next.
        use: gives the policy of ``port`` the weights of a version.
    """

    def __init__(self, port: PolicyPort, use: Callable[[int], None]) -> None:
        self._port, self._use = port, use
        self._queue: list[Request] = []
        self._version = 0

    def begin(self, draw: Draw) -> None:
        self._queue = []
        self._port.begin(draw)

    def submit(self, requests: Sequence[Request]) -> None:
        self._queue += requests

    def poll(self) -> list[Request]:
        if not self._port.pending and self._queue:
            self._version = min(request.version for request in self._queue)
        chosen = [request for request in self._queue if request.version == self._version]
        self._queue = [request for request in self._queue if request.version != self._version]
        self._port.submit(chosen)
        if self._port.pending:
            self._use(self._version)
        return self._port.poll()

    def cancel(self, slot: int) -> None:
        self._queue = [request for request in self._queue if request.slot != slot]
        self._port.cancel(slot)

    @property
    def pending(self) -> int:
        return len(self._queue) + self._port.pending

    def value(self, requests: Sequence[Request]) -> None:
        for version, own in groupby(requests, lambda request: request.version):
            self._use(version)
            self._port.value([*own])

    def end(self, whole: bool = True) -> None:
        self._queue = []
        self._port.end(whole)
