"""Malformed messages at a live server, while another client is answered."""

from __future__ import annotations

import http.client
import json
import socket as sockets
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from mutated_frames import mutated
from serving_rig import Served, ask, observation, serving
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from embodied.client import wire


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096


class Good:
    """A client that asks all the time, in a thread. Each answer must be right."""

    def __init__(self, served: Served) -> None:
        self.answers, self.slowest, self.wrong = 0, 0.0, ""
        self._served, self._ends = served, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        expected = None
        with self._served.connect() as socket:
            socket.recv(timeout=30)
            while not self._ends.is_set():
                began = time.monotonic()
                reply = ask(socket, observation())
                self.slowest = max(self.slowest, time.monotonic() - began)
                if isinstance(reply, str):
                    self.wrong = reply
                    return
                expected = reply["actions"] if expected is None else expected
                if not np.array_equal(expected, reply["actions"]):
                    self.wrong = "other actions"
                self.answers += 1

    def __enter__(self) -> Good:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def websocket(served: Served, frames: list[bytes]) -> None:
    """Send frames that nobody can trust, over as few connections as the server leaves open."""
    left, until = [*frames], time.monotonic() + 120
    while left:
        assert time.monotonic() < until
        # refused while the server has not seen yet that earlier connections of this address have ended
        with suppress(ConnectionClosed, InvalidHandshake, ConnectionError), served.connect() as socket:
            socket.recv(timeout=30)
            while left:
                socket.send(left.pop())
                assert socket.recv(timeout=30)


def rest(served: Served, bodies: list[bytes]) -> None:
    for body in bodies:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        connection.request("POST", "/act", body)
        assert connection.getresponse().status in (200, 400)
        connection.close()


def raw(served: Served, starts: list[bytes]) -> None:
    """Bytes that are no HTTP, or websockets whose frames are no frames; the connection is left as it is."""
    for start in starts:
        with sockets.create_connection(("127.0.0.1", served.port), timeout=30) as socket, suppress(ConnectionError):
            socket.sendall(start)


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def attack(served: Served, count: int) -> None:
    random = np.random.default_rng(count)
    good = wire.pack(observation())
    cut = [good[: random.integers(len(good))] for _ in range(count // 10)]
    websocket(served, [mutated(random) for _ in range(count)] + cut)
    text = json.dumps({"instruction": "go", "state": [0.0] * 8}).encode()
    rest(served, [bytes(byte ^ (random.random() < 0.1) for byte in text) for _ in range(count // 10)])
    raw(served, [HANDSHAKE + random.bytes(40) for _ in range(count // 20)])
    raw(served, [random.bytes(60) for _ in range(count // 20)])


def tracebacks_of_clients_that_left(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.exc_info and isinstance(r.exc_info[1], ConnectionError)]


def test_a_good_client_is_answered_among_bad_ones(caplog):
    with serving() as served, Good(served) as good:
        attack(served, 120)
        assert served.metric("errors_total", {"kind": "wire"}) > 50
    assert not good.wrong
    assert good.answers > 10
    assert not tracebacks_of_clients_that_left(caplog)


@pytest.mark.slow
def test_a_thousand_bad_messages_cost_no_memory_and_nobody_waits(caplog):
    with serving() as served, Good(served) as good:
        attack(served, 500)  # what the first ones allocate for good
        before = resident()
        for _ in range(3):
            attack(served, 1000)
        assert resident() - before < 30 << 20
        answered = good.answers
        time.sleep(0.5)
        assert good.answers > answered, "it is still answered"
    assert not good.wrong
    assert good.answers > 500
    assert good.slowest < 10
    assert not tracebacks_of_clients_that_left(caplog)
