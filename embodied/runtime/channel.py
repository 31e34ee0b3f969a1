"""The channel: fixed-size messages between the rollout process and one env worker, without a copy of any observation.

    rollout ── Command ──▶ ring (commands)    ──▶ worker        one ring each way, in one memfd
    rollout ◀── Completion ── ring (completions) ◀── worker     one eventfd each way, counting messages

A message is written, then the ring's head, then the eventfd: its system call is the fence. A reader first learns from
the eventfd how many messages there are and takes exactly that many, so it never reads a slot that is still being
written.
Nothing spins: whoever waits sleeps in poll or epoll.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from embodied.errors import EmbodiedError


class Kind:
    """What a message is about. Numbers, since looking at an enum's members is a good part of handling a message."""

    RESET: Final = 1  # go to a start and write the first observation into next_row
    STEP: Final = 2  # execute the chunk in row, write rewards there and the next observation into next_row


class Command(NamedTuple):
    """What a slot is to do.

    Example: ``Command(Kind.STEP, slot=0, row=17, next_row=18)``.
    """

    kind: int  # of Kind
    slot: int  # index among all slots of the pool
    row: int = -1  # STEP: row whose "actions" are executed
    next_row: int = -1  # row that the next observation is written into
    task_id: int = -1  # RESET: the start
    init_state_id: int = -1
    seed: int = 0
    max_steps: int = 0  # RESET: step limit of the episode
    ignore_terminations: bool = False  # RESET
    observe_truncated: bool = False  # STEP: observe into next_row also when the chunk truncates the episode
    observe_terminated: bool = False  # STEP: … when it terminates it
    video: bool = False  # RESET: record; the file's name comes over the socket


class Completion(NamedTuple):
    """What a slot has done. Rewards and flags of a STEP stand in the record's row as well."""

    kind: int  # of Kind
    slot: int
    num_steps: int = 0  # STEP: control steps executed
    ended: bool = False  # STEP: the episode is over
    observed: bool = True  # an observation was written into next_row; after the end only if the command asked for it
    began: float = 0.0  # CLOCK_MONOTONIC at which the worker took the command; one clock for all processes
    reset_s: float = 0.0  # seconds of wall clock from then on in env.reset, env.step, env.observe, and for the video
    step_s: float = 0.0
    render_s: float = 0.0
    video_s: float = 0.0
    round_s: float = 0.0  # of a batch: seconds that the whole round took, of which those above are the slot's share


_CODES = {"int": "q", "bool": "?", "float": "d"}


def _layout(message: type) -> struct.Struct:
    """Fields in their order."""
    return struct.Struct("<" + "".join(_CODES[_type_name(kind)] for kind in message.__annotations__.values()))


def _type_name(annotation: Any) -> str:
    return annotation.__forward_arg__ if hasattr(annotation, "__forward_arg__") else str(annotation)


class Ring:
    """Messages of one type from one writer to one reader, in shared memory.

    Args:
        memory: at least :meth:`nbytes` bytes.
        capacity: messages in flight.
        event: eventfd that counts messages; the writer adds, the reader takes.
    """

    HEADER = 128  # head and tail, each on a cache line of its own

    def __init__(self, message: type, memory: memoryview, capacity: int, event: int) -> None:
        self._capacity, self.event, self._memory = capacity, event, memory
        self._layout, self._message = _layout(message), message
        self._places = [self.HEADER + number * self._layout.size for number in range(capacity)]  # of the messages
        self._head, self._tail = memory[:8].cast("Q"), memory[64:72].cast("Q")
        self._unannounced = 0

    @classmethod
    def nbytes(cls, message: type, capacity: int) -> int:
        return cls.HEADER + -(-_layout(message).size * capacity // 64) * 64

    def put(self, message: Command | Completion, announce: bool = True) -> None:
        """Append one message and wake the reader, or leave that to a later :meth:`announce`: waking costs more than the
        message. Raises :class:`EmbodiedError` if the ring is full."""
        head = self._head[0]
        if head - self._tail[0] >= self._capacity:
            raise EmbodiedError(
                f"a channel of {self._capacity} messages is full",
                "raise env.channel.queue_size and rollout.channel.queue_size, or set them to 0",
            )
        self._layout.pack_into(self._memory, self._places[head % self._capacity], *message)
        self._head[0] = head + 1
        self._unannounced += 1
        if announce:
            self.announce()

    def announce(self) -> None:
        """Wake the reader if there are messages that it has not been told of."""
        if self._unannounced:
            os.eventfd_write(self.event, self._unannounced)
            self._unannounced = 0

    def take(self) -> list[Command | Completion]:
        """All messages that have been announced; sleeps until there is one unless the eventfd is non-blocking."""
        try:
            count = os.eventfd_read(self.event)
        except BlockingIOError:
            return []
        first, unpack, places, message = self._tail[0], self._layout.unpack_from, self._places, self._message
        numbers = range(first, first + count)
        values = [unpack(self._memory, places[number % self._capacity]) for number in numbers]
        self._tail[0] = first + count
        return [tuple.__new__(message, fields) for fields in values]  # as message._make, in 2/3 of its time


@dataclass(frozen=True)
class ChannelHandles:
    """What a worker needs to open its end; file descriptors are inherited."""

    memory_fd: int
    go_fd: int  # eventfd: commands announced
    done_fd: int  # eventfd: completions announced
    command_capacity: int
    completion_capacity: int


class Channel:
    """Both rings to one worker. ``create`` in the rollout process, ``open`` in the worker."""

    def __init__(self, handles: ChannelHandles) -> None:
        self.handles = handles
        first = Ring.nbytes(Command, handles.command_capacity)
        memory = memoryview(mmap.mmap(handles.memory_fd, first + Ring.nbytes(Completion, handles.completion_capacity)))
        self.commands = Ring(Command, memory[:first], handles.command_capacity, handles.go_fd)
        self.completions = Ring(Completion, memory[first:], handles.completion_capacity, handles.done_fd)

    @classmethod
    def create(cls, name: str, command_capacity: int, completion_capacity: int) -> Channel:
        size = Ring.nbytes(Command, command_capacity) + Ring.nbytes(Completion, completion_capacity)
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        go = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return cls(ChannelHandles(fd, go, done, command_capacity, completion_capacity))

    def close(self) -> None:
        for fd in (self.handles.memory_fd, self.handles.go_fd, self.handles.done_fd):
            os.close(fd)
