"""Interfaces between the server and a protocol: the protocol is a :class:`Route`, the server its :class:`Host`.

request ─▶ Server: place, token, origin ─▶ Route.answer(host, request, address) ─▶ response
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from embodied.client import wire
from embodied.errors import EmbodiedError
from embodied.serving.limits import Rate, ServerLimits
from embodied.serving.metrics import Metrics
from embodied.serving.service import Service
from embodied.serving.wire.reading import Frames
from embodied.serving.wire.requests import QuestionReader


class Conversation(Protocol):
    """Interface of a connection that stays open from one request to the next."""

    def leave(self) -> None:
        """Close the connection because the server ends; if an answer is under way, after it."""


class Host(Protocol):
    """Interface of the policy server, as the wire protocols use it."""

    service: Service
    reader: QuestionReader
    frames: Frames  # reads binary frames
    limits: ServerLimits
    wire_limits: wire.Limits
    rate: Rate
    metrics: Metrics
    metadata: bytes  # the first message of each connection that stays open
    directory: str  # text that lists what the server has; the answer to an unknown path
    ready: bool  # False while the policy is warmed up, and from draining on
    draining: asyncio.Event  # set when the server ends: nothing new is taken
    conversations: set[Conversation]  # open now

    async def decoded(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Runs ``read(*arguments)`` in a decoder thread: pictures take milliseconds."""

    def answered(self, protocol: str, came: float) -> None:
        """Counts a request that got its actions; ``came`` is its arrival on the event loop's clock."""

    def failed(self, error: EmbodiedError) -> dict[str, str]:
        """Counts an error (RequestError or WireError); returns it as clients get it."""
        ...

    def begins(self) -> None:
        """Counts a request that has come: draining waits for it."""

    def ends(self) -> None:
        """Counts off a request whose answer is sent, or whose client has gone."""


@dataclass(frozen=True)
class Route:
    """An HTTP path of the policy server, with the handler of its protocol.

    Args:
        title: of the route, for people.
        path: as aiohttp writes it; ``/{path:.*}`` takes what no other route has.
        answer: of (host, request, address of the client); called before the server is ready, too.
    """

    title: str
    methods: tuple[str, ...]
    path: str
    answer: Callable[[Host, web.Request, str], Awaitable[web.StreamResponse]]
