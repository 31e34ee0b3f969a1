"""Who is let in at a host's door."""

from __future__ import annotations

import errno
import queue
import select
import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import embodied
from embodied.errors import ConfigError
from embodied.runtime.remote.starter import Address
from embodied.runtime.remote.wire import handshake
from embodied.runtime.remote.wire.frames import PROTOCOL
from embodied.runtime.remote.wire.handshake import Caller, Door, NotOpened, Opened, dial

KEY, SESSION = b"k" * 32, b"s" * 16
FAR = 20.0  # seconds


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door(Address("127.0.0.1", 0), KEY)
    yield opened
    opened.close()


def answer(door: Door, refuse: bool = False) -> queue.SimpleQueue[tuple[Caller, Opened | None]]:
    """Waits in a thread for one who has the key, and accepts or refuses it. Returns a queue that it is put into."""
    came: queue.SimpleQueue[tuple[Caller, Opened | None]] = queue.SimpleQueue()

    def serve() -> None:
        waiting = select.poll()
        waiting.register(door, select.POLLIN)
        waiting.poll(1000 * FAR)
        (caller,) = door.callers()
        came.put((caller, caller.refuse() if refuse else caller.accept(taken=7)))

    threading.Thread(target=serve, daemon=True).start()
    return came


def test_who_has_the_key_is_let_in_and_both_know_what_was_taken(door):
    came = answer(door)
    opened = dial(door.address, KEY, SESSION, taken=3, timeout_s=FAR)
    with opened.socket:
        caller, theirs = came.get(timeout=FAR)
        assert (opened.taken, theirs.taken, caller.session) == (7, 3, SESSION)
        assert opened.key == theirs.key
        assert opened.key != KEY
        theirs.socket.close()


def test_each_connection_has_a_key_of_its_own(door):
    keys = set()
    for _ in range(2):
        answer(door)
        opened = dial(door.address, KEY, SESSION, 0, FAR)
        opened.socket.close()
        keys.add(opened.key)
    assert len(keys) == 2


def test_another_rollout_is_refused(door):
    answer(door, refuse=True)
    with pytest.raises(NotOpened, match="serves another rollout"):
        dial(door.address, KEY, SESSION, 0, FAR)


def test_a_wrong_key_is_refused(door, capfd):
    with pytest.raises(NotOpened, match="broke off"):
        dial(door.address, b"x" * 32, SESSION, 0, FAR)
    assert door.callers() == []
    said, until = "", time.monotonic() + 60
    while "was not let in: it does not have the key" not in said and time.monotonic() < until:
        said += capfd.readouterr().out  # a thread of the door says it after it has broken off
        time.sleep(0.01)
    assert "was not let in: it does not have the key" in said


def test_a_host_without_the_key_is_not_believed():
    impostor = Door(Address("127.0.0.1", 0), b"x" * 32)
    impostor._examine = lambda connection: _pretend(connection)  # type: ignore[method-assign]
    with pytest.raises(NotOpened, match="does not have the key"):
        dial(impostor.address, KEY, SESSION, 0, FAR)
    impostor.close()


def _pretend(connection: socket.socket) -> Caller:
    hello = handshake._exactly(connection, handshake._HELLO.size)
    connection.sendall(hello)
    handshake._exactly(connection, handshake.PROOF_BYTES)
    connection.sendall(handshake._VERDICT.pack(1, 0, bytes(32)))
    return Caller(connection, KEY, hello + hello)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [("__version__", "9.8.7", r"9\.8\.7"), ("PROTOCOL", PROTOCOL + 1, rf"protocol {PROTOCOL + 1}")],
)
def test_another_version_is_told_with_both_versions(door, monkeypatch, capfd, name, value, told):
    own, hello = embodied.__version__, handshake._HELLO

    class Hello:
        size = hello.size
        unpack = staticmethod(hello.unpack)

        @staticmethod
        def pack(magic: bytes, protocol: int, version: bytes, nonce: bytes, session: bytes, taken: int) -> bytes:
            if session == SESSION:  # the rollout's hello; the other is the host's
                return hello.pack(magic, protocol, version, nonce, session, taken)
            version = str(value).encode() if name == "__version__" else version
            return hello.pack(magic, value if name == "PROTOCOL" else protocol, version, nonce, session, taken)

    monkeypatch.setattr(handshake, "_HELLO", Hello)
    with pytest.raises(ConfigError, match=told) as caught:
        dial(door.address, KEY, SESSION, 0, FAR)
    assert f"this process is {own} (host protocol {PROTOCOL})" in caught.value.message
    assert "the same version" in caught.value.remedy


def test_who_is_no_host_is_told_so():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def web() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 100)
                connection.recv(1000)

        threading.Thread(target=web, daemon=True).start()
        with pytest.raises(NotOpened, match="no simulator host"):
            dial(Address(*listening.getsockname()), KEY, SESSION, 0, FAR)


def test_a_connection_that_could_not_be_accepted_is_not_the_last(door, monkeypatch):
    """As with no file descriptor left. The first accept waits already, and it is that of the socket."""
    failed = threading.Event()

    class Fails:
        def __getattr__(self, name):
            return getattr(listening, name)

        def accept(self):
            if not failed.is_set():
                failed.set()
                raise OSError(errno.EMFILE, "Too many open files")
            return listening.accept()

    listening = door._listening
    monkeypatch.setattr(door, "_listening", Fails())
    answer(door)
    dial(door.address, KEY, SESSION, 0, FAR).socket.close()
    assert failed.wait(FAR)
    answer(door)
    dial(door.address, KEY, SESSION, 0, FAR).socket.close()


def test_a_thread_that_cannot_be_started_is_not_the_doors_end(door, monkeypatch):
    start, failed = threading.Thread.start, threading.Event()

    def fails(thread: threading.Thread) -> None:
        if thread.name == "caller" and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails)
    with pytest.raises(NotOpened, match="broke off"):
        dial(door.address, KEY, SESSION, 0, FAR)
    answer(door)
    dial(door.address, KEY, SESSION, 0, FAR).socket.close()


def test_strangers_that_say_nothing_keep_nobody_out(door, monkeypatch):
    """Those who have waited longest leave when more come than are examined at the same time."""
    monkeypatch.setattr(handshake, "HELLO_S", 600.0)
    silent = [socket.create_connection(door.address, FAR) for _ in range(handshake.AT_ONCE + 5)]
    answer(door)
    dial(door.address, KEY, SESSION, 0, FAR).socket.close()
    for each in silent[:6]:
        assert each.recv(1) == b""
    for each in silent:
        each.close()


def test_strangers_do_not_harm_the_door(door):
    """A few hundred hellos with bytes changed, cut or added; then the rollout is let in as ever."""
    random = np.random.default_rng(2)
    hello = handshake._HELLO.pack(
        handshake._MAGIC, PROTOCOL, embodied.__version__.encode(), bytes(32), SESSION, 0
    ) + bytes(32)
    for number in range(300):
        data = bytearray(hello)
        for _ in range(random.integers(0, 4)):
            at = int(random.integers(len(data)))
            data[at] = int(random.integers(256))
        data = data[: int(random.integers(len(data) + 1))] if number % 3 == 0 else data + random.bytes(number % 5)
        with socket.create_connection(door.address, FAR) as connection:
            connection.sendall(data)
    assert door.callers() == []
    answer(door)
    dial(door.address, KEY, SESSION, 0, FAR).socket.close()
