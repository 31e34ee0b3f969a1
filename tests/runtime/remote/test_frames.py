"""Frames between rollouts and hosts: what is damaged on its way is found, and what is not arrives whole."""

from __future__ import annotations

import socket
from dataclasses import dataclass

import numpy as np
import pytest

from embodied.errors import EmbodiedError, RendererUnavailableError, WorkerHungError
from embodied.runtime.remote.wire import frames
from embodied.runtime.remote.wire.clock import MINUTE, Clock
from embodied.runtime.remote.wire.frames import (
    HEAD_BYTES,
    DamagedFrame,
    Head,
    Rows,
    check_large,
    error_from_json,
    error_to_json,
    from_text,
    pack_head,
    to_text,
    unpack_head,
)
from embodied.runtime.remote.wire.link import Link
from embodied.runtime.slab import Slab, info_fields, runtime_fields
from embodied.types import ArraySpec

KEY = b"k" * 32
ROW = 40  # bytes of a large part


@dataclass
class End:
    """One end of a connection, which puts large parts of kind 10 into ``row``."""

    link: Link
    row: bytearray

    @classmethod
    def of(cls, connection: socket.socket | None = None, key: bytes = KEY) -> End:
        row = bytearray(ROW)
        parts = [memoryview(row)[:13], memoryview(row)[13:]]
        link = Link(lambda kind, slot, small: [*parts] if kind == 10 else [])
        if connection is not None:
            link.attach(connection, key, 0)
        return cls(link, row)

    def read(self) -> list[tuple[int, int, bytes, bytes]]:
        return [(f.kind, f.slot, f.small, bytes(self.row) if f.kind == 10 else b"") for f in self.link.read()]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    return near, far


class Wire:
    """In the place of a connection: keeps what is sent, and gives what it holds."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.sent = memoryview(data), bytearray()

    def setblocking(self, blocking: bool) -> None: ...

    def setsockopt(self, *option: int) -> None: ...

    def close(self) -> None: ...

    def sendmsg(self, parts: list[memoryview]) -> int:
        self.sent += b"".join(parts)
        return sum(map(len, parts))

    def recvmsg_into(self, views: list[memoryview]) -> tuple[int]:
        count = min(len(views[0]), len(self.data))
        views[0][:count] = self.data[:count]
        self.data = self.data[count:]
        return (count,)


SENT = [(1, 0, b"a command", b""), (10, 3, b"done", bytes(range(ROW))), (14, -1, b"", b""), (2, 7, b"x" * 50, b"")]


def put_all(end: End) -> None:
    for kind, slot, small, large in SENT:
        end.link.put(kind, slot, small, [memoryview(large[:13]), memoryview(large[13:])] if large else ())


@pytest.fixture(scope="module")
def stream() -> bytes:
    """The bytes of all frames of ``SENT``."""
    wire = Wire()
    sender = End.of(wire)
    put_all(sender)
    assert sender.link.flush()
    assert len(wire.sent) == sum(HEAD_BYTES + len(small) + len(large) for _, _, small, large in SENT)
    return bytes(wire.sent)


def test_frames_arrive_whole_and_in_order():
    near, far = tcp_pair()
    sender, receiver = End.of(near), End.of(far)
    put_all(sender)
    sender.link.flush()
    sender.link.alive()
    found = []
    while len(found) < len(SENT) + 1:
        found += receiver.read()
        assert receiver.link.broken is None
    assert [frame for frame in found if frame[0] != frames.FrameKind.ALIVE] == SENT
    assert receiver.link.bytes_received == sender.link.bytes_sent
    sender.link.detach()
    while receiver.link.broken is None:
        assert receiver.read() == []
    assert isinstance(receiver.link.broken, EOFError)
    receiver.link.detach()


def mutated(stream: bytes, random: np.random.Generator) -> bytes:
    """A stream with a few bytes changed, cut, added, doubled, or with parts that change places."""
    data = bytearray(stream)
    for _ in range(random.integers(1, 4)):
        at, to = sorted(int(n) for n in random.integers(len(data) + 1, size=2))
        kind = random.integers(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + int(random.integers(1, 9))]
        elif kind == 2:
            data[at:at] = random.bytes(int(random.integers(1, 9)))
        elif kind == 3:
            data[at:at] = stream[at:to]
        elif kind == 4:
            size = int(random.integers(1, 17))
            data[at : at + size], data[to : to + size] = data[to : to + size], data[at : at + size]
        elif data:
            data[at % len(data)] ^= 1 << int(random.integers(8))
    return bytes(data)


def test_no_mutated_stream_gives_a_frame_that_was_not_sent(stream):
    """10⁴ streams: what comes before the damage arrives, and nothing else ever does."""
    random, whole = np.random.default_rng(5), 0
    for _ in range(10_000):
        receiver = End.of(Wire(mutated(stream, random)))
        found = receiver.read()
        assert found == SENT[: len(found)]
        assert isinstance(receiver.link.broken, EOFError | DamagedFrame)
        whole += len(found) == len(SENT)
    assert whole < 2_000, "most mutations damage something"


def test_frames_of_another_connection_are_damaged(stream):
    receiver = End.of(Wire(stream), key=b"another key".ljust(32))
    assert receiver.read() == []
    assert isinstance(receiver.link.broken, DamagedFrame)


def test_a_frame_comes_once_and_in_its_order(stream):
    size = HEAD_BYTES + len(SENT[0][2])
    first, rest = stream[:size], stream[size:]
    for data, count in ((first + first, 1), (rest, 0)):
        receiver = End.of(Wire(data))
        assert receiver.read() == SENT[:count]
        assert isinstance(receiver.link.broken, DamagedFrame)


def test_what_was_not_taken_is_sent_again_over_the_next_connection(stream):
    sender, half = End.of(Wire()), Wire(stream[: len(stream) // 2])
    put_all(sender)
    sender.link.flush()
    receiver = End.of(half)
    found = receiver.read()
    again = Wire()
    sender.link.attach(again, b"2" * 32, receiver.link.taken)
    sender.link.flush()
    receiver.link.attach(Wire(bytes(again.sent)), b"2" * 32, 0)
    assert 0 < len(found) < len(SENT)
    assert found + receiver.read() == SENT


def test_what_was_taken_is_forgotten_and_what_was_never_sent_cannot_have_been():
    sender = End.of(Wire())
    put_all(sender)
    sender.link.flush()
    sender.link.attach(Wire(), KEY, len(SENT))
    with pytest.raises(DamagedFrame, match="has taken frame 9"):
        sender.link.attach(Wire(), KEY, 9)


def test_a_head_is_told_by_its_check():
    head = Head(1, -1, 5, 4, 1.5, 10, 20, b"12345678", 99)
    packed = pack_head(head, KEY)
    assert unpack_head(packed, KEY) == head
    for at in range(len(packed)):
        changed = bytearray(packed)
        changed[at] ^= 16
        with pytest.raises(DamagedFrame, match="head"):
            unpack_head(bytes(changed), KEY)
    with pytest.raises(DamagedFrame, match="at most"):
        unpack_head(pack_head(head._replace(small=1 << 25), KEY), KEY)


@pytest.mark.parametrize("size", [1, 7, 8, 65, 4096, 100_003])
def test_the_check_of_an_observation_changes_with_it(size):
    random = np.random.default_rng(size)
    data = random.integers(0, 255, size, dtype=np.uint8)
    views = [memoryview(data[: size // 3]), memoryview(data[size // 3 :])]
    check = check_large(views)
    for _ in range(200):
        at, bit = random.integers(size), random.integers(8)
        data[at] ^= 1 << bit
        assert check_large(views) != check
        data[at] ^= 1 << bit
    assert check_large(views) == check
    if size > 4000:
        data[:8], data[3200:3208] = data[3200:3208].copy(), data[:8].copy()
        assert check_large(views) != check
    if size > 100_000:
        for block in (64, 1024, 2048):
            fresh = random.integers(0, 255, size, dtype=np.uint8)
            check = check_large([memoryview(fresh)])
            fresh[:block], fresh[block : 2 * block] = fresh[block : 2 * block].copy(), fresh[:block].copy()
            assert check_large([memoryview(fresh)]) != check, "blocks that change places"


def rows(names: tuple[str, ...] = ("answer",)) -> tuple[Rows, Slab]:
    fields = {
        "images": ArraySpec((2, 3), "uint8"), "state": ArraySpec((3,), "float32"),
        "actions": ArraySpec((4, 7), "float32"), "logprobs": ArraySpec((4,), "float32"),
        **runtime_fields(4), **info_fields(names),
    }  # fmt: skip
    slab = Slab.create(fields, 2)
    return Rows(slab, ("images", "state")), slab


def test_rows_arrive_bit_by_bit():
    (ours, here), (theirs, there) = rows(), rows()
    random = np.random.default_rng(1)
    for array in here.arrays.values():
        array[:] = random.integers(0, 2, array.shape).astype(array.dtype)
    for shown in (False, True):
        theirs.write_decision(0, ours.decision(1, shown), shown)
        assert len(ours.decision(1, shown)) == ours.decision_bytes(shown)
    theirs.write_result(0, ours.result(1))
    for view, other in zip(theirs.observation(0), ours.observation(1), strict=True):
        view[:] = other
    told = {"task_id", "episode_id", "t", "version"}  # the rollout writes these itself
    for name in set(here.arrays) - told:
        assert np.array_equal(there.arrays[name][0], here.arrays[name][1]), name
    with pytest.raises(DamagedFrame, match="bytes of a row"):
        theirs.write_result(0, ours.result(1)[:-1])


@pytest.mark.parametrize(
    "error",
    [WorkerHungError("it hung", "raise the limit", "a stack"), RendererUnavailableError("no GL", "install it")],
)
def test_errors_travel_whole(error):
    again = error_from_json(from_text(to_text(error_to_json(error))))
    assert type(again) is type(error)
    assert again.args == error.args


def test_an_error_of_another_class_keeps_its_text():
    class OfTheirs(EmbodiedError):
        def __init__(self, message: str) -> None:
            super().__init__(message, "buy another")
            self.args = (message, "buy another", "a third")

    again = error_from_json(error_to_json(OfTheirs("broken glass")))
    assert (type(again), again.message, again.remedy) == (EmbodiedError, "broken glass", "buy another")
    assert "ValueError: odd" in str(error_from_json(error_to_json(ValueError("odd"))))


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\xff"])
def test_a_text_that_is_none_is_damaged(data):
    with pytest.raises(DamagedFrame):
        from_text(data)


@pytest.mark.parametrize("data", [{}, {"class": "EmbodiedError", "arguments": []}, {"class": "Callable"}])
def test_an_error_that_is_none_is_damaged(data):
    with pytest.raises(DamagedFrame):
        error_from_json(data)


def test_the_clock_takes_the_quickest_frame_of_the_last_two_minutes():
    clock = Clock()
    for delay in (0.5, 0.1, 0.9):
        clock.heard(theirs=1000.0, ours=MINUTE + 20.0 + delay)
    assert clock.ours(1000.0) == pytest.approx(MINUTE + 20.1)
    clock.heard(theirs=1000.0 + 2 * MINUTE, ours=3 * MINUTE + 20.3)  # the clocks drift
    clock.heard(theirs=1000.0 + 4 * MINUTE, ours=5 * MINUTE + 20.3)
    assert clock.ours(1000.0 + 4 * MINUTE) == pytest.approx(5 * MINUTE + 20.3)
