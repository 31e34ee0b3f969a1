"""Connections before they are requests: how many there may be, and how long one may say nothing.

listening socket ─▶ Guarded: takes a place, begins its time ─▶ aiohttp's handler ─▶ a request: the time ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from embodied.serving.limits import Places, ServerLimits
from embodied.serving.metrics import Metrics

SPARE = 16  # connections beyond the limit that are told so; any more are cut


class Connections:
    """Counts and limits the open connections of a server."""

    def __init__(self, limits: ServerLimits, metrics: Metrics) -> None:
        self.limits, self._metrics = limits, metrics
        self._places = Places(limits.max_connections, limits.max_connections_per_address)
        self._silent: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        self._without_place: set[asyncio.BaseTransport] = set()

    def guarded(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Wraps aiohttp's factory of protocols for ``create_server``."""
        return lambda: _Guarded(self, make())

    def speaks(self, transport: asyncio.BaseTransport | None) -> None:
        """Notes that a request of this connection has begun: from now on other limits watch it."""
        if transport is not None and (timer := self._silent.pop(transport, None)):
            timer.cancel()

    def has_place(self, transport: asyncio.BaseTransport | None) -> bool:
        """Returns whether the connection has a place, so that its requests are answered."""
        return transport not in self._without_place

    def take(self, address: str, transport: asyncio.Transport) -> bool:
        """Takes a place for a new connection, or else a spare one over which it is refused. Returns False if it is to
        be cut."""
        if not self._places.take(address):
            self._metrics.refused_connections.labels("too many").inc()
            if len(self._without_place) >= SPARE:
                return False
            self._without_place.add(transport)
        self._metrics.connections.set(self._places.taken)
        loop = asyncio.get_running_loop()
        self._silent[transport] = loop.call_later(self.limits.first_request_s, self._drop, transport)
        return True

    def free(self, address: str, transport: asyncio.BaseTransport) -> None:
        """Give the place of a connection back that has ended."""
        self.speaks(transport)
        if transport in self._without_place:
            self._without_place.remove(transport)
        else:
            self._places.free(address)
        self._metrics.connections.set(self._places.taken)

    def _drop(self, transport: asyncio.Transport) -> None:
        self._silent.pop(transport, None)
        self._metrics.refused_connections.labels("silent").inc()
        transport.abort()


class _Guarded(asyncio.Protocol):
    """Passes everything on to another protocol, once the connection has a place."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections, self._inner = connections, inner
        self._address: str | None = None  # the client's address while the connection has a place
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast(asyncio.Transport, transport)
        address = address_of(made)
        if not self._connections.take(address, made):
            made.abort()
            return
        self._address, self._transport = address, made
        self._inner.connection_made(made)

    def data_received(self, data: bytes) -> None:
        if self._address is not None:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._address is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None and self._transport is not None:
            self._connections.free(self._address, self._transport)
            self._address = None
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def address_of(transport: asyncio.BaseTransport | None) -> str:
    """The address of the other side, without its port."""
    peer: Any = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if peer else "unknown"
