"""The server: one port for the routes of its protocols, ``/healthz``, ``/readyz`` and ``/metrics``.

starting ──warm-up──▶ ready ──SIGTERM──▶ draining: nothing new, what is under way is answered ──▶ closed
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web

from embodied.client import wire
from embodied.errors import ConfigError, EmbodiedError, RequestError
from embodied.serving import access
from embodied.serving.connections import Connections, address_of
from embodied.serving.host import Conversation, Route
from embodied.serving.limits import Rate, ServerLimits
from embodied.serving.metrics import Metrics
from embodied.serving.service import Service
from embodied.serving.wire.reading import Frames
from embodied.serving.wire.requests import QuestionReader

log = logging.getLogger(__name__)

DECODERS = 2  # threads that read requests
LEAVE_S = 5.0  # time limit for clients to answer a close
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Serves one policy.

    Args:
        metadata: the first message of each websocket.
        routes: of the protocols that are spoken.
        token: asked of every client, but not for health and readiness.
        certificate: of TLS.
    """

    def __init__(
        self,
        service: Service,
        reader: QuestionReader,
        metadata: Mapping[str, Any],
        routes: Sequence[Route],
        limits: ServerLimits,
        metrics: Metrics,
        token: str | None = None,
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        self.service, self.reader, self.limits, self.metrics = service, reader, limits, metrics
        self.metadata = wire.pack(metadata)
        self.directory = f"here are {', '.join(route.title for route in routes)}, /healthz, /readyz and /metrics\n"
        self._routes = sorted(routes, key=lambda route: "{" in route.path)  # a route that takes any path comes last
        self.wire_limits = wire.Limits(max_bytes=limits.max_bytes)
        self.rate = Rate(limits.rate, limits.burst)
        self.draining = asyncio.Event()
        self._token, self._certificate = token, certificate
        self._connections = Connections(limits, metrics)
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoder")
        self.frames = Frames(reader, limits.max_bytes, self._decoders, metrics, service.most_together)
        self._under_way = 0  # requests that have come and are not answered
        self._idle = asyncio.Event()  # set while there is none
        self._idle.set()
        self.ready = False
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self.conversations: set[Conversation] = set()  # open websockets

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Starts to listen, and asks the policy once; returns the port, which the system chooses if ``port`` is 0.

        Raises:
            ConfigError: the address cannot be used.
            RequestError: the policy failed in its first calls.
        """
        app = web.Application(middlewares=[self._watch], client_max_size=self.limits.max_bytes)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)
        app.router.add_get("/metrics", self._metrics)
        for route in self._routes:
            for method in route.methods:
                app.router.add_route(method, route.path, partial(self._answer, route))
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, auto_decompress=False, keepalive_timeout=30.0,
            shutdown_timeout=LEAVE_S,
        )  # fmt: skip
        await self._runner.setup()
        assert self._runner.server is not None
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._connections.guarded(self._runner.server), host, port, ssl=self._certificate,
                ssl_handshake_timeout=None if self._certificate is None else self.limits.first_request_s,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {host}:{port}: {error.strerror or error}", "choose another --port, or --host"
            ) from error
        self.service.start()
        await self.service.ready()
        self.ready = True
        self.metrics.ready.set(1)
        return int(self._listening.sockets[0].getsockname()[1])

    async def drain(self) -> None:
        """Shuts down: takes no more requests, answers those under way (for ``drain_s`` at most), closes all
        connections."""
        self.ready = False
        self.metrics.ready.set(0)
        if self._listening is not None:
            self._listening.close()
        self.draining.set()
        for conversation in [*self.conversations]:
            conversation.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.drain_s):
                await self._idle.wait()
        await self._leave()
        if self._runner is not None:
            await self._runner.cleanup()
        self._decoders.shutdown(cancel_futures=True)
        if self.service.alive:
            await asyncio.to_thread(self.service.close)

    async def _leave(self) -> None:
        """Wait until the websockets have said goodbye."""
        deadline = asyncio.get_running_loop().time() + LEAVE_S
        while self.conversations and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    # -- what protocols call (host.py) ---------------------------------------------------------------------------------

    async def decoded(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Runs ``read(*arguments)`` in a decoder thread: pictures take milliseconds."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = await loop.run_in_executor(self._decoders, read, *arguments)
        self.metrics.decode.observe(loop.time() - began)
        return found

    def answered(self, protocol: str, came: float) -> None:
        """Counts a request that got its actions; ``came`` is its arrival on the event loop's clock."""
        self.metrics.answered(protocol, asyncio.get_running_loop().time() - came)

    def failed(self, error: EmbodiedError) -> dict[str, str]:
        """Counts an error (RequestError or WireError); returns it as clients get it."""
        kind = error.kind if isinstance(error, RequestError) else "wire"
        self.metrics.errors.labels(kind).inc()
        return {"kind": kind, "message": error.message, "fix": error.remedy}

    def begins(self) -> None:
        """Counts a request that has come."""
        self._under_way += 1
        self._idle.clear()

    def ends(self) -> None:
        """Counts off a request whose answer is sent, or whose client has gone."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    # -- HTTP --------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._connections.speaks(request.transport)
        if not self._connections.has_place(request.transport):
            refusal = web.Response(status=503, text="too many connections\n", headers={"Retry-After": "1"})
            refusal.force_close()
            return refusal
        if access.from_web_page(request.headers):
            self.metrics.refused_connections.labels("web page").inc()
            raise web.HTTPForbidden(text="pages of web browsers may not ask\n")
        if request.path not in ("/healthz", "/readyz") and not access.allowed(request.headers, self._token):
            self.metrics.refused_connections.labels("token").inc()
            raise web.HTTPUnauthorized(text="wrong token, or none\n", headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        alive = self.service.alive
        return web.Response(text="OK\n" if alive else "the inference thread has ended\n", status=200 if alive else 500)

    async def _readiness(self, request: web.Request) -> web.Response:
        if self.ready and self.service.alive:
            return web.Response(text="ready\n")
        return web.Response(text="draining\n" if self.draining.is_set() else "starting\n", status=503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _answer(self, route: Route, request: web.Request) -> web.StreamResponse:
        return await route.answer(self, request, address_of(request.transport))
