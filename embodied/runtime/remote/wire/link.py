"""One end of the frames between a rollout and a host: it outlives the connections that carry them.

    put ──▶ waiting ──flush──▶ kept ──▶ (the peer has taken it) forgotten
               ▲                │
               └──── attach ────┘        a new connection: what the peer has not taken is sent again

A frame that is sent again is read anew from where it stands. An observation still stands in its row then: a slot's row
is written again only after the next command for the slot, which says that the observation was taken.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from embodied.runtime.remote.wire.frames import (
    HEAD_BYTES,
    DamagedFrame,
    Frame,
    FrameKind,
    Head,
    check_large,
    check_small,
    pack_head,
    unpack_head,
)

ALIVE_S = 1.0  # seconds between two signs of life
MOST_PARTS = 64  # of one call of sendmsg

Large = Callable[[int, int, bytes], list[memoryview]]
"""Given kind, slot and small part of a frame: where its large part belongs. Raises :class:`DamagedFrame` for a frame
that cannot be."""


class _Outgoing(NamedTuple):
    number: int  # 0: a sign of life
    kind: int
    slot: int
    small: bytes
    large: Sequence[memoryview]


class Link:
    """Sends frames and receives those of the peer. A thread of its own may call :meth:`alive` meanwhile.

    Args:
        large: for frames that are received.
    """

    def __init__(self, large: Large) -> None:
        self._large = large
        self._lock = threading.Lock()  # of all that is sent
        self._waiting: deque[_Outgoing] = deque()
        self._kept: deque[_Outgoing] = deque()  # handed to the connection, not known to be taken
        self._parts: list[memoryview] = []  # of frames whose bytes are being sent
        self._number = 0
        self._socket: socket.socket | None = None
        self._key = b""
        self._received: Iterator[Frame | None] = iter(())
        self.taken = 0  # number of the last frame that was received whole
        self.heard = time.monotonic()  # when bytes came the last time
        self.broken: Exception | None = None  # why the connection is of no use any more
        self.bytes_sent = self.bytes_received = 0

    # -- connections -------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int:
        """Returns the connection's descriptor; −1 without one."""
        return -1 if self._socket is None else self._socket.fileno()

    def attach(self, connection: socket.socket, key: bytes, taken: int) -> None:
        """Go on over a new connection.

        Args:
            key: of its frames.
            taken: number of the last frame that the peer has taken.

        Raises:
            DamagedFrame: there is no such frame: the peer has not been at the other end before.
        """
        self.detach()
        with self._lock:
            self._forget(taken)
            self._waiting.extendleft(reversed(self._kept))
            self._kept.clear()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket, self._key, self.broken = connection, key, None
        self._received = self._receive(connection, key)
        self.heard = time.monotonic()

    def detach(self) -> None:
        """Close the connection, if there is one."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket, self._parts = None, []
        self._received = iter(())

    # -- sending -----------------------------------------------------------------------------------------------------

    def put(self, kind: int, slot: int = -1, small: bytes = b"", large: Sequence[memoryview] = ()) -> None:
        """Append a frame to those that the next :meth:`flush` sends."""
        with self._lock:
            self._number += 1
            self._waiting.append(_Outgoing(self._number, kind, slot, small, large))

    def flush(self) -> bool:
        """Send what the connection takes without blocking. Returns False if something is left that it may take later;
        what a broken one does not take waits for the next."""
        with self._lock:
            return self._flush()

    def alive(self) -> None:
        """Send a sign of life, unless other bytes are on their way."""
        with self._lock:
            if self._socket is not None and self._flush() and not self._parts:
                self._parts += self._packed(_Outgoing(0, FrameKind.ALIVE, -1, b"", ()))
                self._flush()

    def _flush(self) -> bool:
        if self._socket is None or self.broken is not None:
            return True
        try:
            while self._parts or self._waiting:
                while self._waiting and len(self._parts) < MOST_PARTS:
                    self._kept.append(self._waiting.popleft())
                    self._parts += self._packed(self._kept[-1])
                sent = self._socket.sendmsg(self._parts[:MOST_PARTS])
                self.bytes_sent += sent
                self._parts = _after(self._parts, sent)
        except BlockingIOError:
            return False
        except OSError as error:
            self.broken = error
        return True

    def _packed(self, frame: _Outgoing) -> list[memoryview]:
        head = Head(
            frame.kind, frame.slot, frame.number, self.taken, time.monotonic(), len(frame.small),
            sum(map(len, frame.large)), check_small(frame.small, self._key), check_large(frame.large),
        )  # fmt: skip
        return [memoryview(pack_head(head, self._key) + frame.small), *frame.large]

    def _forget(self, taken: int) -> None:
        """Forget the frames that the peer has taken."""
        while self._kept and self._kept[0].number <= taken:
            self._kept.popleft()
        first = self._kept[0] if self._kept else self._waiting[0] if self._waiting else None
        expected = self._number if first is None else first.number - 1
        if taken > expected:
            raise DamagedFrame(f"the peer has taken frame {taken}, and frame {expected} was the last one sent")

    # -- receiving ---------------------------------------------------------------------------------------------------

    def read(self) -> list[Frame]:
        """Returns the frames that have come whole, without waiting. If the connection is of no use any more,
        :attr:`broken` says why."""
        found: list[Frame] = []
        try:
            for frame in self._received:
                if frame is None:
                    break
                found.append(frame)
        except (OSError, EOFError, DamagedFrame) as error:
            self.broken = error
        return found

    def _receive(self, connection: socket.socket, key: bytes) -> Iterator[Frame | None]:
        """Yields frame after frame; None while the rest of one has not come."""
        packed = bytearray(HEAD_BYTES)
        while True:
            yield from self._fill(connection, [memoryview(packed)])
            head = unpack_head(bytes(packed), key)
            with self._lock:
                self._forget(head.taken)
            if head.number and head.number != self.taken + 1:
                raise DamagedFrame(f"frame {head.number} came after frame {self.taken}")
            small = bytearray(head.small)
            yield from self._fill(connection, [memoryview(small)])
            if check_small(bytes(small), key) != head.small_check:
                raise DamagedFrame("the small part of a frame is damaged")
            views = self._large(head.kind, head.slot, bytes(small))
            if sum(map(len, views)) != head.large:
                raise DamagedFrame(f"an observation of {head.large} bytes, expected {sum(map(len, views))}")
            yield from self._fill(connection, views)
            if check_large(views) != head.large_check:
                raise DamagedFrame("an observation is damaged")
            self.taken = head.number or self.taken
            yield Frame(head.kind, head.slot, head.clock, bytes(small))

    def _fill(self, connection: socket.socket, views: list[memoryview]) -> Iterator[None]:
        """Fills the views with what comes; yields whenever nothing has."""
        while views and any(map(len, views)):
            try:
                count = connection.recvmsg_into(views)[0]
            except BlockingIOError:
                yield None
                continue
            if not count:
                raise EOFError("the connection was closed")
            self.heard = time.monotonic()
            self.bytes_received += count
            views = _after(views, count)


def _after(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """Returns what is left of some views after their first ``count`` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []
