"""A policy server whose answers a test writes: a real websocket on loopback."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from embodied.client import wire

METADATA = {"server": "stub", "action_shape": [4, 3], "control_hz": 20.0}
Reply = Callable[[Mapping[str, Any], ServerConnection], Any]


def counting(request: Mapping[str, Any], actions: int = 4) -> dict[str, Any]:
    """An answer whose numbers say which state it answers: state, state + 1, …; under the request's id."""
    first = float(np.asarray(request["state"])[0])
    numbers = np.full((actions, 3), first, np.float32) + np.arange(actions, dtype=np.float32)[:, None]
    return {"actions": numbers, "server_timing": {"infer_ms": 1.5}, wire.REQUEST_ID: request[wire.REQUEST_ID]}


def cut(connection: ServerConnection) -> None:
    """End a connection without a word, as a network does."""
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)


class Stub:
    """A running server. ``requests`` has all that it was asked."""

    def __init__(self, reply: Reply, metadata: Any, token: str | None, tls: ssl.SSLContext | None) -> None:
        self.reply, self.metadata, self.token, self._tls = reply, metadata, token, tls
        self.requests: list[Mapping[str, Any]] = []
        self._open: set[ServerConnection] = set()
        self._server: Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'ws' if self._tls is None else 'wss'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; again on the same port after :meth:`stop`."""
        self._server = serve(
            self._serve,
            "127.0.0.1",
            self.port,
            compression=None,
            process_request=self._admit,
            close_timeout=0.5,
            ssl=self._tls,
        )
        self.port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server = None
            for connection in [*self._open]:
                cut(connection)

    def _admit(self, connection: ServerConnection, request: Any) -> Any:
        if self.token is not None and request.headers.get("Authorization") != f"Api-Key {self.token}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "no\n")
        return None

    def _serve(self, connection: ServerConnection) -> None:
        self._open.add(connection)
        try:
            connection.send(self.metadata if isinstance(self.metadata, str | bytes) else wire.pack(self.metadata))
            for frame in connection:
                request = wire.unpack(frame)
                self.requests.append(request)
                answer = self.reply(request, connection)
                if answer is not None:
                    connection.send(answer if isinstance(answer, str | bytes) else wire.pack(answer))
        except ConnectionClosed:
            pass
        finally:
            self._open.discard(connection)


@contextmanager
def stub_server(
    reply: Reply = lambda request, connection: counting(request), metadata: Any = METADATA, token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Stub]:  # fmt: skip
    stub = Stub(reply, metadata, token, tls)
    stub.start()
    try:
        yield stub
    finally:
        stub.stop()
