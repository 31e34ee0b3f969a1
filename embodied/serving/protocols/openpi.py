"""openpi's websocket protocol: metadata first, then one frame an observation, one frame an answer.

Unlike openpi's server this one answers a request that it cannot read and goes on: with a text frame, or with a map to
clients that send keys of ours (:mod:`embodied.client.wire`). openpi's client raises the text of such a frame and can go
on as well. Tracebacks stay in the server's log.

    frame ─▶ Frames.read ─▶ Service.submit ─▶ inference thread ─▶ event loop: answer
             (event loop or decoder threads)

A frame may hold several requests, which are answered in one (:mod:`.together`). The next frame of a client is read
while its last one is answered, so that pings are answered and one frame waits at most. When a client leaves, aiohttp
cancels its handler, and nothing is computed for it that has not begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from embodied.client import wire
from embodied.errors import EmbodiedError, WireError
from embodied.serving.host import Host, Route
from embodied.serving.protocols.together import Part, Together
from embodied.serving.service import Answer, Outcome, Session, Ticket
from embodied.serving.websocket import opened
from embodied.serving.wire.reading import Asker
from embodied.serving.wire.requests import Question

log = logging.getLogger(__name__)

NAME = "openpi"
SMALL = 1 << 14  # an answer of so many bytes or characters waits for no client that has taken all before
GOODBYE = b"the server ends"


async def converse(host: Host, request: web.Request, address: str) -> web.WebSocketResponse:
    """Serves one openpi websocket connection until either side ends it.

    Raises:
        HTTPNotFound: the request is no websocket's.
        HTTPServiceUnavailable: the server is not ready.
    """
    socket = await opened(host, request, host.limits.ping_s)
    if socket.prepared and request.transport is not None:
        await Conversation(host, socket, request.transport, address).run()
    return socket


class Conversation:
    """One openpi websocket connection: metadata, then a frame and its answer in turn, until either side ends it."""

    def __init__(self, host: Host, socket: web.WebSocketResponse, transport: asyncio.Transport, address: str) -> None:
        self.host, self.session, self.loop = host, Session(), asyncio.get_running_loop()
        self._socket, self._transport, self._address = socket, transport, address
        self._ours = False  # True once the client has sent keys of ours: it reads errors in maps
        self._before: float | None = None  # seconds that its last request took, as openpi's server tells
        self._asked: _Request | None = None  # request that is not answered yet
        self._answered: asyncio.Future[None] | None = None  # done once the request before is answered
        self._last = self.loop.time()  # time of the last answer
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Serves the connection until either side ends it."""
        draining = self.host.draining
        self._idle = self.loop.call_later(self.host.limits.idle_s, self._look_at_clock)
        self.host.conversations.add(self)
        try:
            await self._send_within(self._socket.send_bytes(self.host.metadata))
            while not draining.is_set():
                if (message := await self._socket.receive()).type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                    return
                if self._asked is not None:
                    self._answered = self.loop.create_future()
                    await self._answered
                if not draining.is_set():
                    self._begin(message)
            await self._socket.close(code=WSCloseCode.GOING_AWAY, message=GOODBYE)
        except (ConnectionError, TimeoutError):  # the client has gone, or does not take its answers
            self._transport.abort()
        finally:
            self.host.conversations.discard(self)
            self._idle.cancel()
            if self._asked is not None:
                self._asked.give_up()
            self._ends()

    def leave(self) -> None:
        """Close the connection because the server ends; if an answer is under way, after it."""
        if self._asked is None:
            self._close(WSCloseCode.GOING_AWAY, GOODBYE)

    def _look_at_clock(self) -> None:
        """Close the connection if it was idle for too long, else look again later."""
        left = self._last + self.host.limits.idle_s - self.loop.time()
        if self._asked is None and left <= 0:
            self._close(WSCloseCode.POLICY_VIOLATION, b"idle for too long")
        else:
            self._idle = self.loop.call_later(max(left, 1.0), self._look_at_clock)

    def _close(self, code: WSCloseCode, why: bytes) -> None:
        """Then the frame that is waited for is none."""
        self._in_task(self._socket.close(code=code, message=why))

    def _in_task(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- a request ---------------------------------------------------------------------------------------------------

    def _begin(self, message: WSMessage) -> None:
        host = self.host
        host.begins()
        asked = self._asked = _Request(self)
        if (wait := host.rate.wait(self._address)) > 0:
            host.metrics.slowed.inc()
            asked.later = self.loop.call_later(wait, asked.read, message)
        else:
            asked.read(message)

    def answer(self, asked: _Request, outcome: Outcome | Sequence[Part]) -> None:
        """Answers the frame that is under way: of one request, or of several that have their outcomes. Called on the
        event loop."""
        try:
            if isinstance(outcome, EmbodiedError) and not self._ours:
                error = self.host.failed(outcome)
                self._send(f"{error['message']}\n  fix: {error['fix']}")
            elif isinstance(outcome, Answer | EmbodiedError):
                self._send(wire.pack_plain(self._reply(outcome, asked, asked.request_id)))
            else:
                for _ in outcome[1:]:  # the first was counted when the frame came
                    self.host.rate.wait(self._address)
                replies = [self._reply(part.outcome, asked, part.request_id) for part in outcome if part.outcome]
                self._send(wire.pack_plain({wire.REPLIES: replies}))
        except ConnectionError:
            self._transport.abort()
        except Exception:
            log.exception("a request of %s was not answered", self._address)
            self._transport.abort()

    def note_own_client(self) -> None:
        """Notes that the client sends keys that openpi does not have."""
        self._ours = True

    def _ends(self) -> None:
        """The request that was under way is answered, or nobody waits for it."""
        if self._asked is None:
            return
        now = self.loop.time()
        self._before = now - self._asked.came
        self._asked, self._last = None, now
        self.host.ends()
        if self._answered is not None:
            if not self._answered.done():
                self._answered.set_result(None)
            self._answered = None
        elif self.host.draining.is_set():
            self._close(WSCloseCode.GOING_AWAY, GOODBYE)

    def _reply(self, outcome: Outcome, asked: _Request, request_id: int | str | None) -> dict[str, Any]:
        """Counts an outcome; returns it as clients get it, in types that msgpack knows."""
        identity = {} if request_id is None else {wire.REQUEST_ID: request_id}
        if isinstance(outcome, EmbodiedError):
            return {wire.ERROR: self.host.failed(outcome), **identity}
        self.host.answered(NAME, asked.came)
        timing: dict[str, Any] = {
            "infer_ms": outcome.infer_ms, "queue_ms": outcome.queue_ms, "batch": outcome.batch
        }  # fmt: skip
        if self._before is not None:
            timing["prev_total_ms"] = 1000 * self._before
        reply: dict[str, Any] = {wire.ACTIONS: wire.plain_array(outcome.actions)}
        return reply | {"server_timing": timing, "policy_timing": {"infer_ms": outcome.infer_ms}, **identity}

    def _send(self, frame: bytes | str) -> None:
        """Send an answer: at once if all before it was taken, else in a task."""
        sending = self._socket.send_str(frame) if isinstance(frame, str) else self._socket.send_bytes(frame)
        if len(frame) > SMALL or self._transport.get_write_buffer_size():
            self._in_task(self._send_slowly(sending))
            return
        try:
            sending.send(None)  # writes the frame; nothing is waited for
        except StopIteration:
            self._ends()
            return
        finally:
            sending.close()
        raise RuntimeError("the websocket waits before it sends, though all before was taken")

    async def _send_slowly(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            await self._send_within(sending)
            self._ends()
        except (ConnectionError, TimeoutError):
            self._transport.abort()

    async def _send_within(self, sending: Coroutine[Any, Any, None]) -> None:
        """Raises TimeoutError if the client does not take it."""
        async with asyncio.timeout(self.host.limits.send_s):
            await sending


class _Request(Ticket):
    """A frame on its way to its answer."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.came = conversation.loop.time()
        self.request_id: int | str | None = None
        self._together: Together | None = None  # the requests, if there are several in the frame
        self.later: asyncio.TimerHandle | None = None  # timer while the request is held back

    def give_up(self) -> None:
        """Marks the request as abandoned: nobody waits for its answer."""
        self.gone = True
        if self._together is not None:
            self._together.give_up()
        if self.later is not None:
            self.later.cancel()

    def read(self, message: WSMessage) -> None:
        self.later = None
        host = self._conversation.host
        if message.type is WSMsgType.TEXT:
            self.deliver(WireError("a text frame", "send binary frames (embodied.client.wire.pack)"))
            return
        host.metrics.note(host.metrics.received_bytes.inc, len(message.data))
        host.frames.read(message.data, self)

    def on_options(self, request_id: int | str | None, ours: bool) -> None:
        self.request_id = request_id
        if ours:
            self._conversation.note_own_client()

    def on_several(self, count: int) -> Sequence[Asker]:
        conversation = self._conversation
        together = Together(
            count, conversation.host.service, conversation.session, conversation.loop,
            lambda: self.deliver(together.parts),
        )  # fmt: skip
        self._together = together
        if self.gone:  # it was given up meanwhile, on the event loop
            together.give_up()
        return together.parts

    def on_question(self, question: Question | EmbodiedError) -> None:
        conversation = self._conversation
        try:
            if isinstance(question, EmbodiedError):
                raise question
            conversation.host.service.submit(question, conversation.session, self)
        except EmbodiedError as error:
            with suppress(RuntimeError):  # the loop is closed
                conversation.loop.call_soon_threadsafe(self.deliver, error)

    def deliver(self, outcome: Outcome | Sequence[Part]) -> None:
        if not self.gone:
            self.gone = True  # one answer for each request: a second one would be taken for that to the next
            self._conversation.answer(self, outcome)


ROUTE = Route("a websocket", ("GET", "HEAD"), "/{path:.*}", converse)
