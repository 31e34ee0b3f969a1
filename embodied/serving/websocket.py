"""Opens websockets for the protocols whose clients stay connected."""

from __future__ import annotations

from contextlib import suppress

from aiohttp import web

from embodied.serving.host import Host

CLOSE_S = 3.0  # time limit for the client to answer a close


async def opened(host: Host, request: web.Request, heartbeat: float | None) -> web.WebSocketResponse:
    """Answers the handshake of a websocket. If the client has gone meanwhile, the socket is not prepared.

    Args:
        heartbeat: seconds between two pings, which clients must answer within half of it; None: no pings.

    Raises:
        HTTPNotFound: the request is no websocket's.
        HTTPServiceUnavailable: the server is not ready.
    """
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise web.HTTPNotFound(text=host.directory)
    if not host.ready:
        raise web.HTTPServiceUnavailable(text="not ready\n", headers={"Retry-After": "1"})
    socket = web.WebSocketResponse(
        max_msg_size=host.limits.max_bytes, heartbeat=heartbeat, compress=False, timeout=CLOSE_S
    )
    with suppress(ConnectionError):  # the client has gone meanwhile
        await socket.prepare(request)
    return socket
