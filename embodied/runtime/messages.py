"""The rare messages between launcher and env worker, over a Unix socket: set-up, facts, tracebacks, names of videos,
perturbations of episodes.

The messages of each chunk go over :mod:`embodied.runtime.channel` instead. The types live in a module of their own so
that both ends import them under one name.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied.runtime.channel import ChannelHandles
from embodied.runtime.worker.declared import Declared
from embodied.runtime.worker.expert import ExpertJob
from embodied.runtime.worker.reward import ShapedReward
from embodied.runtime.worker.shown import Shown
from embodied.types import ArraySpec


@dataclass(frozen=True)
class WorkerSetup:
    """Set-up message to an env worker: its slots, env, rewards and shared memory."""

    index: int
    slots: tuple[int, ...]  # indices among all slots of the pool
    env_target: str
    env_kwargs: Mapping[str, Any]
    reward: ShapedReward
    eval_reward: ShapedReward | None  # reward of evaluations; None = the same
    slab_fd: int
    slab_fields: Mapping[str, ArraySpec]
    slab_rows: int
    channel: ChannelHandles
    shown: Shown | None  # how a decision is said on videos; None = it is not
    sys_path: tuple[str, ...]  # the launcher's, so that an env class of the user's project is found
    cores: tuple[int, ...] = ()  # CPU cores to run on; empty = any
    expert: ExpertJob | None = None  # the env's expert acts in place of a policy
    live: bool = False  # videos are shown in a window, too
    guarded: bool = False  # it has a robot, whose guardian ends it if the launcher is killed
    declared: str | None = None  # digest of what the launcher's env declares; None = the env's is not compared


@dataclass(frozen=True)
class Ready:
    """First message of a worker, or the last if it failed."""

    facts: Any = None
    error: BaseException | None = None  # an EmbodiedError, to be raised in the launcher
    traceback: str = ""
    declared: Declared | None = None  # by its env, which is another than the launcher's

    @property
    def failed(self) -> bool:
        return self.error is not None or self.declared is not None or bool(self.traceback)


@dataclass(frozen=True)
class Notice:
    """A text for a person, from a worker that serves."""

    text: str


def send(connection: socket.socket, message: Any) -> None:
    """Send one pickled message, length first. Blocks while the socket is full, so it is for messages whose reader waits
    for them: set-up, facts, tracebacks. What a busy reader gets goes through an :class:`Outbox`."""
    connection.sendall(_framed(message))


def _framed(message: Any) -> bytes:
    data = pickle.dumps(message)
    return len(data).to_bytes(8, "little") + data


class Outbox:
    """Buffers messages to a process that may be too busy to read: names of videos, perturbations of episodes.

    They travel in lists: one pickled list costs the socket far less room than its messages one by one, of which 42 fill
    it. Nothing blocks and nothing is lost: what the socket does not take waits here.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._messages: list[Any] = []
        self._unsent = bytearray()

    def put(self, *messages: Any) -> None:
        """Appends messages to the buffer."""
        self._messages += messages

    def __bool__(self) -> bool:
        """Returns whether something is left to send."""
        return bool(self._messages or self._unsent)

    def flush(self) -> bool:
        """Sends what the socket takes without blocking. Returns whether nothing is left; nothing is when the reader is
        dead."""
        if self._messages:
            self._unsent += _framed(self._messages)
            self._messages = []
        if not self._unsent:
            return True
        if self._connection.gettimeout() != 0.0:  # the first messages over the socket are waited for
            self._connection.setblocking(False)
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent.clear()
        return True


def receive(connection: socket.socket) -> Any:
    """Receive the next message. Raises :class:`EOFError` when the other end is closed."""
    size = int.from_bytes(_receive_exactly(connection, 8), "little")
    return pickle.loads(_receive_exactly(connection, size))


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the other end of the worker's socket is closed")
        data += part
    return bytes(data)
