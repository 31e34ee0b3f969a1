"""The channel: fixed-size messages between the rollout process and one env worker, without a copy of any observation.

    rollout ── Command ──▶ ring (commands)    ──▶ worker        one ring each way, in one memfd
    rollout ◀── Completion ── ring (completions) ◀── worker     one eventfd each way, to wake the reader

The writer writes messages, then the ring's head, then the eventfd (a bell) if the reader has asked for it. Waking a
process costs more than a message does, so a reader that waits for several asks to be woken once they are there. Fences
keep the order of these writes as the other process sees it: no message is read before it is written, and every bell
that the reader counts on is rung.
Nothing spins: whoever waits sleeps in poll or epoll.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from embodied.errors import EmbodiedError


class Kind:
    """Kinds of messages: reset, step, expert, observe. Plain numbers, since looking up an enum's members is a good part
    of handling a message."""

    RESET: Final = 1  # go to a start and write the first observation into next_row; −1 = an OBSERVE does
    STEP: Final = 2  # execute the chunk in row, write rewards there and the next observation into next_row
    EXPERT: Final = 3  # let the env's expert act for as many control steps as row takes, and write all of it there
    OBSERVE: Final = 4  # write the observation of a slot that stands at its start into next_row; of no batch


class Command(NamedTuple):
    """Message to an env worker: what a slot is to do.

    Example: ``Command(Kind.STEP, slot=0, row=17, next_row=18)``.
    """

    kind: int  # one of Kind
    slot: int  # index among all slots of the pool
    row: int = -1  # STEP: row whose "actions" are executed; EXPERT: row that is written
    next_row: int = -1  # row that the next observation is written into
    task_id: int = -1  # RESET: the start
    init_state_id: int = -1
    seed: int = 0
    max_steps: int = 0  # RESET: step limit of the episode
    ignore_terminations: bool = False  # RESET: the episode goes on when the env terminates it
    observe_truncated: bool = False  # STEP: observe into next_row also when the chunk truncates the episode
    observe_terminated: bool = False  # STEP: observe into next_row also when the chunk terminates the episode
    video: bool = False  # RESET: record; the file's name comes over the socket
    attempt: int = -1  # RESET before EXPERT: number of the attempt, which keys its noise
    perturbed: bool = False  # RESET: how the episode is perturbed comes over the socket, after the file's name
    evaluation: bool = False  # RESET: the rewards of evaluations count


class Completion(NamedTuple):
    """Message from an env worker: a command was executed. Rewards and flags of a STEP stand in the record's
    row as well."""

    kind: int  # one of Kind
    slot: int
    num_steps: int = 0  # STEP, EXPERT: control steps executed
    ended: bool = False  # STEP, EXPERT: the episode is over
    observed: bool = True  # an observation was written into next_row; after the end only if the command asked for it
    began: float = 0.0  # CLOCK_MONOTONIC at which the worker took the command; one clock for all processes
    reset_s: float = 0.0  # these four: wall-clock seconds in env.reset, env.step, env.observe, and for the video
    step_s: float = 0.0
    render_s: float = 0.0
    video_s: float = 0.0
    round_s: float = 0.0  # seconds of a batch's whole round; the four above are the slot's share of it

    @property
    def finished(self) -> float:
        """CLOCK_MONOTONIC at which the worker had executed the command."""
        return self.began + (self.round_s or self.reset_s + self.step_s + self.render_s + self.video_s)


_CODES = {"int": "q", "bool": "?", "float": "d"}


def layout_of(message: type) -> struct.Struct:
    """Struct of the message's fields, in their order."""
    return struct.Struct("<" + "".join(_CODES[_type_name(kind)] for kind in message.__annotations__.values()))


def _type_name(annotation: Any) -> str:
    return annotation.__forward_arg__ if hasattr(annotation, "__forward_arg__") else str(annotation)


_LOCK = threading.Lock()


def fence() -> None:
    """Memory fence: other processes see this thread's earlier writes before anything that it reads or writes later.
    Python has no such instruction; releasing a lock and taking it again acts as one on x86 and ARM (0.2 µs)."""
    _LOCK.acquire()
    _LOCK.release()
    _LOCK.acquire()
    _LOCK.release()


class Ring:
    """Messages of one type from one writer to one reader, in shared memory.

    Args:
        memory: at least :meth:`nbytes` bytes.
        capacity: messages in flight.
        event: eventfd that wakes the reader; it says that there may be messages, not how many.
    """

    HEADER = 192  # head, tail and what the reader asks for, each on a cache line of its own

    def __init__(self, message: type, memory: memoryview, capacity: int, event: int) -> None:
        self._capacity, self.event, self._memory = capacity, event, memory
        self._layout, self._message = layout_of(message), message
        self._places = [self.HEADER + number * self._layout.size for number in range(capacity)]  # message offsets
        self._head, self._tail = memory[:8].cast("Q"), memory[64:72].cast("Q")  # messages written, and read
        self._ring_at = memory[128:136].cast("Q")  # head from which on the reader wants to be woken
        self._written = self._head[0]  # messages put, announced or not

    @classmethod
    def nbytes(cls, message: type, capacity: int) -> int:
        """Returns the bytes of shared memory that a ring of ``capacity`` messages takes."""
        return cls.HEADER + -(-layout_of(message).size * capacity // 64) * 64

    # -- the writer --------------------------------------------------------------------------------------------------

    def put(self, message: Command | Completion, announce: bool = True) -> None:
        """Append one message; announce it (which costs more), or leave that to a later :meth:`announce`.
        Raises :class:`EmbodiedError` if the ring is full."""
        number = self._written
        if number - self._tail[0] >= self._capacity:
            raise EmbodiedError(
                f"a channel of {self._capacity} messages is full",
                "raise env.channel.queue_size and rollout.channel.queue_size, or set them to 0",
            )
        self._layout.pack_into(self._memory, self._places[number % self._capacity], *message)
        self._written = number + 1
        if announce:
            self.announce()

    def announce(self) -> None:
        """Let the reader see what has been put, and wake it if that is as much as it waits for."""
        if self._written == self._head[0]:
            return
        fence()
        self._head[0] = self._written
        fence()
        if self._written >= self._ring_at[0]:
            os.eventfd_write(self.event, 1)

    # -- the reader --------------------------------------------------------------------------------------------------

    def ask(self, count: int) -> bool:
        """Asks to be woken once ``count`` messages wait to be taken. The number lasts; it is 1 at first, and with 1
        each message wakes. Returns whether so many wait already."""
        ring_at = self._tail[0] + count if count > 1 else 0
        if ring_at == self._ring_at[0]:
            return False
        self._ring_at[0] = ring_at
        fence()
        return self._head[0] - self._tail[0] >= count

    @property
    def withheld(self) -> bool:
        """Whether the reader asked for more than one message, so that some may wait without its being woken."""
        return self._ring_at[0] > 0

    def hush(self) -> None:
        """Clears pending wake-ups. Blocks until there is one, unless the eventfd is non-blocking."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.event)

    def take(self) -> list[Command | Completion]:
        """Returns all messages that have been announced; does not wait."""
        first, head = self._tail[0], self._head[0]
        if first == head:
            return []
        fence()
        unpack, places, message = self._layout.unpack_from, self._places, self._message
        values = [unpack(self._memory, places[number % self._capacity]) for number in range(first, head)]
        fence()
        self._tail[0] = head
        return [tuple.__new__(message, fields) for fields in values]  # like message._make, in 2/3 of its time


@dataclass(frozen=True)
class ChannelHandles:
    """Descriptors and sizes with which a worker opens its end; the descriptors are inherited."""

    memory_fd: int
    go_fd: int  # eventfd: there are commands
    done_fd: int  # eventfd: there are as many completions as were asked for
    command_capacity: int
    completion_capacity: int


class Channel:
    """Shared-memory rings of commands to, and completions from, one env worker. ``create`` in the rollout process,
    ``open`` in the worker."""

    def __init__(self, handles: ChannelHandles) -> None:
        self.handles = handles
        first = Ring.nbytes(Command, handles.command_capacity)
        memory = memoryview(mmap.mmap(handles.memory_fd, first + Ring.nbytes(Completion, handles.completion_capacity)))
        self.commands = Ring(Command, memory[:first], handles.command_capacity, handles.go_fd)
        self.completions = Ring(Completion, memory[first:], handles.completion_capacity, handles.done_fd)

    @classmethod
    def create(cls, name: str, command_capacity: int, completion_capacity: int) -> Channel:
        """Allocates the shared memory and the eventfds of a channel."""
        size = Ring.nbytes(Command, command_capacity) + Ring.nbytes(Completion, completion_capacity)
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        go = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return cls(ChannelHandles(fd, go, done, command_capacity, completion_capacity))

    def close(self) -> None:
        for fd in (self.handles.memory_fd, self.handles.go_fd, self.handles.done_fd):
            os.close(fd)
