"""The client of a policy server, for robot code: synchronous, with a deadline for every answer.

    robot ── observation, prompt ──▶ │ Client │ ── one binary frame (wire.py) ──▶ policy server
    robot ◀── actions [K, A] ─────── │        │ ◀── one binary frame ────────────

It speaks openpi's protocol (``python -m embodied.tools.serve``, or a server of openpi): the server's first frame is a
map of facts, then each request is answered by one frame. A connection that is lost is made anew within the deadline of
the request, and the request is sent again: answering twice harms nobody.

The package needs numpy, websockets and msgpack; it imports neither torch nor anything else of ``embodied``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from embodied.client import wire
from embodied.client.connection import Busy, Connection, Lost
from embodied.client.replies import read_actions, read_metadata, read_reply
from embodied.client.tls import tls_context
from embodied.errors import ServerLostError, ServerRefusedError, WireError

T = TypeVar("T")

PAUSE_S = (0.05, 1.0)  # seconds before the third attempt, and before any later one at most
SAME = ("action_shape", "action", "control_hz", "cameras", "observation", "continues")
"""Facts of a server that may not change while a client lives: the robot was set up for them."""


@dataclass(frozen=True)
class Answer:
    """A policy server's actions for one observation, with the times that they took."""

    actions: np.ndarray  # float32 [K, A], unit of the env's controller; of a policy of discrete actions int32 [K]
    round_trip_s: float  # includes connecting anew where that was needed
    server: Mapping[str, Any] = field(default_factory=dict)  # the server's own times: infer_ms, queue_ms, batch


class Client:
    """A client of a policy server, which connects anew when the connection is lost.

        client = Client("ws://192.168.1.5:8000", token="…")
        actions = client.infer({"images": images, "state": state, "prompt": "put the cup on the plate"})

    Methods may be called from several threads; requests are answered one after another.

    Args:
        url: ``ws://host:port``, or ``wss://host:port`` with TLS.
        token: sent to the server in the header ``Authorization``.
        timeout_s: seconds that an answer may take.
        connect_s: seconds that the first connection may take, e.g. while the server still starts.
        greedy: True: ask for the likeliest actions; False: for drawn ones; None: leave it to the server.
        session: of drawn actions, equal requests of equal sessions get equal answers; may be set between requests.
        ca_file: certificates (PEM) of the authority that signed the server's, if it is not a public one.

    Raises:
        ServerLostError: no server answers there within ``connect_s``.
        ServerRefusedError: it wants another token.
        ConfigError: ``url`` or ``ca_file`` cannot be used, or a package is missing.
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout_s: float = 5.0, connect_s: float = 30.0,
        greedy: bool | None = None, session: int | None = None, ca_file: Path | str | None = None,
    ) -> None:  # fmt: skip
        self._url, self._timeout_s, self.greedy, self.session = url, timeout_s, greedy, session
        self._headers = {} if token is None else {"Authorization": f"Api-Key {token}"}
        self._tls = tls_context(url, ca_file)
        self._lock = threading.RLock()
        self._background = ThreadPoolExecutor(1, thread_name_prefix="policy client")
        self._connection: Connection | None = None
        self._closed = False
        self._requests = self._connections = 0
        self.metadata: Mapping[str, Any] = {}
        deadline = time.monotonic() + connect_s
        with self._lock:
            self._persist(lambda: self._connected(deadline), deadline, connect_s)

    @property
    def horizon(self) -> int | None:
        """K, the actions of an answer; None if the server does not say."""
        return shape[0] if (shape := self.action_shape) else None

    @property
    def action_shape(self) -> tuple[int, int] | None:
        """(K, A) of an answer; None if the server does not say."""
        shape = self.metadata.get("action_shape")
        return None if shape is None else (int(shape[0]), int(shape[1]))

    @property
    def control_hz(self) -> float | None:
        """Control steps a second that the policy was trained for; None if the server does not say."""
        hertz = self.metadata.get("control_hz")
        return None if hertz is None else float(hertz)

    @property
    def continues(self) -> bool:
        """Whether the server goes on from what is left of the chunk before."""
        return bool(self.metadata.get("continues"))

    @property
    def reconnects(self) -> int:
        """Connections that were made after the first."""
        return max(0, self._connections - 1)

    def infer(
        self, observation: Mapping[str, Any], *, delay_steps: int | None = None, left_over: np.ndarray | None = None,
        timeout_s: float | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Returns the actions that answer an observation: float32 [K, A], the caller's own.

        Args:
            observation: the fields that ``metadata`` names, and the instruction as a text ``prompt``.
            delay_steps: control steps that the robot makes before the answer is there, as far as is known.
            left_over: what is left of the chunk before, float32 [n, A]; only of a server that :attr:`continues`.
            timeout_s: in place of that of the client.

        Raises:
            ServerLostError: there was no answer in time.
            ServerRefusedError: the server does not accept the observation; the connection goes on.
            WireError: the answer, or the observation, is not what the protocol allows; or ``left_over`` is for a server
                that does not go on from it.
        """
        return self.answer(observation, delay_steps=delay_steps, left_over=left_over, timeout_s=timeout_s).actions

    def infer_async(
        self, observation: Mapping[str, Any], *, delay_steps: int | None = None, left_over: np.ndarray | None = None,
        timeout_s: float | None = None,
    ) -> Future[Answer]:  # fmt: skip
        """Asks in a thread of the client's own; arguments and errors as of :meth:`infer`. The arrays of the observation
        are copied before this returns."""
        copied = {
            name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in observation.items()
        }
        own = None if left_over is None else np.array(left_over)
        return self._background.submit(
            self.answer, copied, delay_steps=delay_steps, left_over=own, timeout_s=timeout_s
        )  # fmt: skip

    def answer(
        self, observation: Mapping[str, Any], *, delay_steps: int | None = None, left_over: np.ndarray | None = None,
        timeout_s: float | None = None,
    ) -> Answer:  # fmt: skip
        """Returns the actions with the times that they took; arguments and errors as of :meth:`infer`."""
        began, limit = time.monotonic(), self._timeout_s if timeout_s is None else timeout_s
        if left_over is not None and not self.continues:
            raise WireError(
                "left_over was given, and the policy of this server begins each chunk anew (Client.continues)",
                "leave it out, or serve a checkpoint of a policy that goes on from a chunk, in place of an exported "
                "program",
            )
        told = {
            wire.DELAY_STEPS: delay_steps, wire.GREEDY: self.greedy, wire.SESSION: self.session,
            wire.LEFT_OVER: left_over,
        }  # fmt: skip
        own = {name: value for name, value in told.items() if value is not None}
        with self._lock:
            self._requests += 1
            number = self._requests
            data = wire.pack({**observation, **own, wire.REQUEST_ID: number})
            reply = self._persist(lambda: self._exchange(data, began + limit), began + limit, limit)
            try:
                actions = read_actions(reply, number)
            except WireError:
                self._drop()  # what else comes over it cannot be trusted
                raise
        timing = reply.get("server_timing")
        return Answer(actions, time.monotonic() - began, timing if isinstance(timing, Mapping) else {})

    def _exchange(self, data: bytes, deadline: float) -> Mapping[str, Any]:
        connection = self._connected(deadline)
        connection.send(data)
        return read_reply(connection.receive(deadline))

    # -- the connection ----------------------------------------------------------------------------------------------

    def _connected(self, deadline: float) -> Connection:
        """Returns the present connection, or a new one whose server serves the same policy."""
        if self._closed:
            raise ServerLostError("this client was closed", "make a new Client")
        if self._connection is None:
            connection = Connection(self._url, self._headers, self._tls, deadline, self._timeout_s)
            try:
                metadata = read_metadata(connection.receive(deadline))
                if self._connections:
                    self._check_same(metadata)
            except BaseException:
                connection.drop()
                raise
            self.metadata, self._connection = metadata, connection
            self._connections += 1
        return self._connection

    def _check_same(self, metadata: Mapping[str, Any]) -> None:
        changed = [name for name in SAME if (metadata.get(name) or None) != (self.metadata.get(name) or None)]
        if changed:
            raise ServerRefusedError(
                f"{self._url} serves another policy than before: "
                + ", ".join(f"{name} was {self.metadata.get(name)} and is {metadata.get(name)}" for name in changed),
                "make a new Client, if that is meant",
            )

    def _persist(self, act: Callable[[], T], deadline: float, limit: float) -> T:
        """Calls ``act`` again, after growing pauses, while the connection is lost and there is time."""
        for pause in pauses():
            try:
                return act()
            except Lost as lost:
                if isinstance(lost, Busy):
                    pause = max(pause, PAUSE_S[0])
                else:
                    self._drop()
                if time.monotonic() + pause >= deadline:
                    raise ServerLostError(
                        f"{self._url} gave no answer within {limit:g} s: {lost}",
                        "see whether the server runs (python -m embodied.tools.serve) and what its log says; a slow "
                        "one needs a larger timeout_s",
                    ) from lost
            except WireError:
                self._drop()  # what else comes over it cannot be trusted
                raise
            time.sleep(pause)
        raise AssertionError

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.drop()
        self._connection = None

    def close(self) -> None:
        """Close the connection; a request that is under way is given up."""
        self._closed = True
        if (connection := self._connection) is not None:
            connection.close()
        self._background.shutdown(cancel_futures=True)
        with self._lock:
            self._drop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pauses() -> Iterator[float]:
    """Yields seconds to wait before the next attempt: none, then doubled up to a second.

    >>> from itertools import islice
    >>> [*islice(pauses(), 7)]
    [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    """
    yield 0.0
    pause, longest = PAUSE_S
    while True:
        yield min(pause, longest)
        pause = min(2 * pause, longest)
