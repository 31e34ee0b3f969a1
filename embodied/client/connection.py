"""One websocket to a policy server. Says of each failure whether it may pass by itself or not."""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from embodied.client.tls import certificate_fix
from embodied.errors import ConfigError, EmbodiedError, ServerRefusedError

MAX_REPLY_BYTES = 16 * 2**20
REFUSING_CODES = {1002, 1003, 1007, 1009}
"""Codes of a close that the same request would meet again: protocol, type, content, size."""


class Lost(Exception):
    """The connection cannot be made, or is gone; trying again may help. Holds the reason as a text."""


class Busy(Lost):
    """The server has too much to do, and asks to be asked again later over the same connection."""


class Connection:
    """An open websocket connection to a policy server, whose handshake is done.

    Args:
        url: ``ws://host:port`` or, with TLS, ``wss://host:port``.
        deadline: monotonic time by which it must stand.
        stalled_s: seconds without progress after which sending is given up.

    Raises:
        Lost: nobody answers there at present.
        ServerRefusedError: the server wants another token or another client.
        ConfigError: ``url`` is none, or the package ``websockets`` is missing.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None, deadline: float, stalled_s: float
    ) -> None:
        exceptions = _websockets().exceptions
        left = max(0.001, deadline - time.monotonic())
        try:
            self._socket = _websockets().sync.client.connect(
                url, additional_headers=dict(headers), ssl=context, compression=None, max_size=MAX_REPLY_BYTES,
                open_timeout=left, close_timeout=1.0, proxy=None,
            ).__enter__()  # fmt: skip
        except exceptions.InvalidURI as error:
            raise ConfigError(
                f"'{url}' is no address of a policy server: {error}", "give ws://HOST:PORT or wss://HOST:PORT"
            ) from error
        except exceptions.InvalidStatus as error:
            raise _status(url, error.response.status_code) from error
        except ssl.SSLCertVerificationError as error:
            raise ServerRefusedError(
                f"the certificate of {url} is refused: {error.verify_message}",
                certificate_fix(
                    error, "the URL", "give the file of the authority that signed it: Client(…, ca_file=…)"
                ),
            ) from error
        except (OSError, exceptions.WebSocketException) as error:
            raise Lost(f"{type(error).__name__}: {error}") from error
        self._bound_sending(stalled_s)

    def _bound_sending(self, seconds: float) -> None:
        """Ask the kernel to give up sending when nothing moves: to a peer that is gone it would wait for minutes."""
        whole = math.floor(seconds)
        limit = struct.pack("ll", whole, int(1e6 * (seconds - whole)))
        self._socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, data: bytes) -> None:
        """Sends one message. Raises :class:`Lost` or :class:`embodied.errors.ServerRefusedError`."""
        try:
            self._socket.send(data)
        except (OSError, _websockets().exceptions.WebSocketException) as error:
            raise _closed(error) from error

    def receive(self, deadline: float) -> bytes | str:
        """Wait for the next message, until the monotonic time ``deadline``.

        Raises:
            Lost: there was none, or the connection was closed.
            ServerRefusedError: the server has closed it for a reason that would come again.
        """
        try:
            return self._socket.recv(timeout=max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise Lost("no answer in time") from error
        except (OSError, _websockets().exceptions.WebSocketException) as error:
            raise _closed(error) from error

    def close(self) -> None:
        """Closes the connection in order; waits for at most a second."""
        self._socket.close()

    def drop(self) -> None:
        """Give the connection up without waiting for anything: what still comes over it is never read."""
        with suppress(OSError):  # it is closed already
            self._socket.socket.shutdown(socket.SHUT_RDWR)


def _status(url: str, status: int) -> Exception:
    if status in (401, 403):
        return ServerRefusedError(
            f"{url} refuses the token (HTTP status {status})",
            "give the token that the server was started with: Client(url, token=…)",
        )
    if status == 429 or status >= 500:
        return Lost(f"HTTP status {status}")
    return ServerRefusedError(
        f"{url} is no policy server: it answered with HTTP status {status}",
        "give the address that python -m embodied.tools.serve prints",
    )


def _closed(error: Exception) -> EmbodiedError | Lost:
    """Returns what a failed read or write means."""
    received = getattr(error, "rcvd", None)  # the server's close frame
    if received is not None and received.code in REFUSING_CODES:
        return ServerRefusedError(
            f"the server has closed the connection: {received.reason or 'no reason given'} (code {received.code})",
            "send what the server accepts; its log says more",
        )
    return Lost(f"{type(error).__name__}: {error}")


def _websockets() -> Any:
    try:
        import websockets.exceptions
        import websockets.sync.client
    except ImportError as error:
        raise ConfigError(
            f"the client needs the package websockets: {error}", "pip install 'embodied-rl[client]'"
        ) from error
    return websockets
