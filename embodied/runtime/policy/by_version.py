"""The policy port of a rollout in which weights of several versions act: each version has a port of its own.

    requests: 4 4 5 4 5 ─┬▶ port of 4: its queue, its lanes ─▶ a pass, or a token in each lane, with the weights of 4
                         └▶ port of 5: its queue, its lanes ─▶ … with the weights of 5

The earliest version comes first: an update waits for its episodes before those of others. Where its pass has answered
nothing, the next version has one: while long texts are written, those of later versions go on, a token each in turn.
So a text is decoded with the weights of its rollout alone, and keys and values of a lane are those of one version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from embodied.random import Stream
from embodied.runtime.policy.policy_port import Draw, PolicyPort, Request
from embodied.types import Sampling


class ByVersion(PolicyPort):
    """A policy port that answers requests version by version.

    Args:
        make: makes the port of a version. It is used for another one when no request of its version is left.
        use: gives the policy of the ports the weights of a version.
    """

    def __init__(self, make: Callable[[], PolicyPort], use: Callable[[int], None]) -> None:
        self._make, self._use = make, use
        self._ports: dict[int, PolicyPort] = {}  # version → port
        self._resting = [make()]  # now, so that what does not fit is found before a rollout
        self._draw = Draw(Sampling(), 0, Stream.TRAIN_NOISE)

    def begin(self, draw: Draw) -> None:
        self.end(whole=False)
        self._draw = draw

    def submit(self, requests: Sequence[Request]) -> None:
        for version in sorted({request.version for request in requests}):
            self._of(version).submit([request for request in requests if request.version == version])

    def poll(self) -> list[Request]:
        for version, port in sorted(self._ports.items()):
            if port.pending:
                self._use(version)
                if answered := port.poll():
                    return answered
        return []

    def cancel(self, slot: int) -> None:
        for port in self._ports.values():
            port.cancel(slot)

    @property
    def pending(self) -> int:
        return sum(port.pending for port in self._ports.values())

    def value(self, requests: Sequence[Request]) -> None:
        for version, own in groupby(requests, lambda request: request.version):
            port = self._of(version)
            self._use(version)
            port.value([*own])

    def end(self, whole: bool = True) -> None:
        for version in [*self._ports]:
            self._rest(version, whole)

    def _of(self, version: int) -> PolicyPort:
        """Returns the port of a version, which takes the place of earlier ones that have nothing to do."""
        if version not in self._ports:
            for earlier in [one for one, port in self._ports.items() if one < version and not port.pending]:
                self._rest(earlier)
            port = self._resting.pop() if self._resting else self._make()
            self._use(version)
            port.begin(self._draw)
            self._ports[version] = port
        return self._ports[version]

    def _rest(self, version: int, whole: bool = True) -> None:
        port = self._ports.pop(version)
        port.end(whole)
        self._resting.append(port)
