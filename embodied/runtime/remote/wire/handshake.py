"""Opens a connection to a host: both ends say their version, then prove that they have the key, which never travels.

    rollout ── hello: version, random number, session, frames taken ──▶ host
    rollout ◀────────────── hello: version, random number ───────────── host
    rollout ── proof: HMAC of both hellos ──▶ host                              a stranger is sent away here
    rollout ◀── verdict: proof, frames taken ── host                            resumed, or refused

The key of the connection's frames is an HMAC of both hellos, too: frames of one connection are worth nothing in
another. The layout of a hello never changes, so that versions are told apart.
"""

from __future__ import annotations

import hmac
import os
import queue
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Final, NamedTuple

import embodied
from embodied.errors import ConfigError
from embodied.runtime.remote.starter import Address
from embodied.runtime.remote.wire.frames import PROTOCOL

HELLO_S = 5.0  # seconds that the peer may take for its part
AT_ONCE = 64  # connections that are being opened at the same time; of more, the one that has waited longest is closed
PAUSE_S = 0.1  # after a connection that could not be accepted, e.g. for want of file descriptors

_MAGIC = b"embodied-host\0\0\0"
_HELLO = struct.Struct("<16sH32s32s16sQ")  # magic, protocol, version, random number, session, frames taken
_VERDICT = struct.Struct("<BQ32s")  # verdict, frames taken, proof
PROOF_BYTES = 32
SESSION_BYTES = 16


class Verdict:
    """Answers of a host to who has the key."""

    SERVES: Final = 1
    ANOTHER: Final = 2  # it serves another rollout, or has served this one without knowing the frames


class Opened(NamedTuple):
    """A connection whose peer has the key."""

    socket: socket.socket
    key: bytes  # of its frames
    taken: int  # number of the last frame that the peer has taken


class NotOpened(Exception):
    """The peer broke off, or does not have the key."""


def dial(address: Address, key: bytes, session: bytes, taken: int, timeout_s: float = HELLO_S) -> Opened:
    """Opens a connection to a host.

    Args:
        session: names the rollout; the same for all connections to a host.
        taken: number of the last frame that was taken from the host.

    Raises:
        OSError: it cannot be reached, or does not answer in time (TimeoutError).
        NotOpened: it breaks off, does not have the key, or serves another rollout.
        ConfigError: it is of another version.
    """
    connection = socket.create_connection(address, timeout_s)
    try:
        connection.settimeout(timeout_s)
        ours = _HELLO.pack(_MAGIC, PROTOCOL, embodied.__version__.encode()[:32], os.urandom(32), session, taken)
        connection.sendall(ours)
        theirs = _exactly(connection, _HELLO.size)
        _check_version(theirs, address)
        connection.sendall(_proof(key, b"rollout", ours + theirs))
        answer = _exactly(connection, _VERDICT.size)
        verdict, peer_taken, proof = _VERDICT.unpack(answer)
        expected = _proof(key, b"host", ours + theirs + answer[:-PROOF_BYTES])
        if not hmac.compare_digest(proof, expected):
            raise NotOpened("it does not have the key")
        if verdict != Verdict.SERVES:
            raise NotOpened("it serves another rollout")
        return Opened(connection, _proof(key, b"frames", ours + theirs), peer_taken)
    except BaseException:
        connection.close()
        raise


class Caller:
    """A peer at a host's door that has the key. It waits for :meth:`accept` or :meth:`refuse`."""

    def __init__(self, connection: socket.socket, key: bytes, hellos: bytes) -> None:
        self._connection, self._key, self._hellos = connection, key, hellos
        *_, self.session, self.taken = _HELLO.unpack(hellos[: _HELLO.size])

    def accept(self, taken: int) -> Opened:
        """Tell the peer which frame was taken last; it goes on from there. Raises OSError if it is gone."""
        self._answer(Verdict.SERVES, taken)
        return Opened(self._connection, _proof(self._key, b"frames", self._hellos), self.taken)

    def refuse(self) -> None:
        """Send the peer away: another is served."""
        with suppress(OSError), self._connection:
            self._answer(Verdict.ANOTHER, 0)

    def _answer(self, verdict: int, taken: int) -> None:
        said = struct.pack("<BQ", verdict, taken)
        self._connection.sendall(said + _proof(self._key, b"host", self._hellos + said))


class Door:
    """The port of a host. Threads let in who has the key; :meth:`callers` gives them to the host.

    Args:
        bind: address to listen at; port 0 = any.
    """

    def __init__(self, bind: Address, key: bytes) -> None:
        self._key = key
        self._listening = socket.create_server(bind)
        self.address = Address(*self._listening.getsockname()[:2])
        self._callers: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._opening: list[socket.socket] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._listen, daemon=True, name="door").start()

    def fileno(self) -> int:
        """Returns a descriptor that is readable while somebody waits."""
        return self._bell

    def callers(self) -> list[Caller]:
        """Returns those who have come since the last call."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        found: list[Caller] = []
        with suppress(queue.Empty):
            while True:
                found.append(self._callers.get_nowait())
        return found

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # close alone does not wake the thread
        self._listening.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, peer = self._listening.accept()
            except OSError:
                if self._closed.wait(PAUSE_S):
                    return
                continue
            with self._lock:
                self._opening.append(connection)
                if len(self._opening) > AT_ONCE:
                    with suppress(OSError):  # its thread has just closed it
                        self._opening.pop(0).shutdown(socket.SHUT_RDWR)
            try:
                threading.Thread(target=self._open, args=(connection, peer), daemon=True, name="caller").start()
            except RuntimeError as error:  # as many threads as the system allows; the peer calls again
                self._send_away(connection, peer, error)

    def _open(self, connection: socket.socket, peer: object) -> None:
        try:
            connection.settimeout(HELLO_S)
            self._callers.put(self._examine(connection))
            os.eventfd_write(self._bell, 1)
        except (OSError, EOFError, NotOpened) as error:
            self._send_away(connection, peer, error)
        finally:
            with self._lock, suppress(ValueError):
                self._opening.remove(connection)

    def _send_away(self, connection: socket.socket, peer: object, error: Exception) -> None:
        with self._lock, suppress(ValueError):
            self._opening.remove(connection)
        connection.close()
        print(f"{peer} was not let in: {error}", flush=True)

    def _examine(self, connection: socket.socket) -> Caller:
        theirs = _exactly(connection, _HELLO.size)
        if not theirs.startswith(_MAGIC):
            raise NotOpened("a stranger")
        ours = _HELLO.pack(_MAGIC, PROTOCOL, embodied.__version__.encode()[:32], os.urandom(32), bytes(16), 0)
        connection.sendall(ours)
        if (told := _version(theirs)) != _version(ours):
            raise NotOpened(f"it is embodied {told}, and this is {_version(ours)}")
        proof = _exactly(connection, PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(self._key, b"rollout", theirs + ours)):
            raise NotOpened("it does not have the key")
        return Caller(connection, self._key, theirs + ours)


def _proof(key: bytes, who: bytes, hellos: bytes) -> bytes:
    return hmac.digest(key, who + b"\0" + hellos, "sha256")


def _version(hello: bytes) -> str:
    _, protocol, version, *_ = _HELLO.unpack(hello)
    return f"{version.rstrip(bytes(1)).decode(errors='replace')} (host protocol {protocol})"


def _check_version(theirs: bytes, address: Address) -> None:
    if not theirs.startswith(_MAGIC):
        raise NotOpened("no simulator host of embodied answers there")
    own = f"{embodied.__version__} (host protocol {PROTOCOL})"
    if (told := _version(theirs)) != own:
        raise ConfigError(
            f"the simulator host at {address} is embodied {told}, and this process is {own}",
            "install the same version of embodied on all nodes",
        )


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Receives so many bytes. Raises :class:`NotOpened` if the peer breaks off, and TimeoutError if they do not come
    within twice the connection's timeout, also byte by byte."""
    data, until = bytearray(), time.monotonic() + 2 * (connection.gettimeout() or HELLO_S)
    while len(data) < size:
        if time.monotonic() > until:
            raise TimeoutError("it is too slow")
        try:
            part = connection.recv(size - len(data))
        except ConnectionResetError as error:
            raise NotOpened("it broke off") from error
        if not part:
            raise NotOpened("it broke off")
        data += part
    return bytes(data)
