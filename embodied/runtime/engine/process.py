"""The process of an inference engine, seen from the launcher: started, talked to, watched, ended."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from embodied.errors import EngineError
from embodied.lib.child import Child, how_it_ended, tail
from embodied.runtime.engine.child.wire import Message, Reader, pack

STACK_S = 0.2  # pause between asking a process that hangs for its stack and reading its log


class EngineProcess:
    """A process that runs ``child/serve.py``, or another program of the same messages, and the connection to it.

    Args:
        command: starts it; the number of its end of the socket is put behind.
        log: gets its output.
        remedy: of errors that say why it has ended.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, remedy: str) -> None:
        self.log, self._remedy = log, remedy
        self._reader, self._outbox = Reader(), bytearray()
        self.heard = time.monotonic()  # when it last said something
        self._socket, theirs = socket.socketpair()
        with theirs, log.open("wb") as output:
            self._process = Child(
                [*command, str(theirs.fileno())], death=None,  # it ends, with what it has started, when the socket does
                stdout=output, stderr=output, pass_fds=[theirs.fileno()], env=environment,
            )  # fmt: skip
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Queue a message; :meth:`exchange` sends it. Nothing is sent at once, so that the two processes never wait for
        each other."""
        self._outbox += pack(kind, body, **fields)

    def exchange(self, wait_s: float) -> list[Message]:
        """Send what is queued as far as it fits, wait up to ``wait_s`` for messages, and return those that came.

        Raises:
            EngineError: the process has ended.
        """
        waiting = select.poll()  # select() takes no descriptor from 1024 on
        waiting.register(self._socket, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        found = dict(waiting.poll(1000 * wait_s)).get(self._socket.fileno(), 0)
        readable, writable = found & (select.POLLIN | select.POLLHUP | select.POLLERR), found & select.POLLOUT
        ended = not readable and self._process.poll() is not None
        received = b""
        try:
            if readable:
                received = self._socket.recv(1 << 20)
                ended = not received
            if writable:
                del self._outbox[: self._socket.send(self._outbox)]
        except (BrokenPipeError, ConnectionResetError):
            ended = not received
        messages = list(self._reader.feed(received))
        if messages:
            self.heard = time.monotonic()
        for message in messages:
            if message.kind == "failed":
                raise self._failed(message)
        if ended:
            raise self._died()
        return messages

    def wait_for(self, kind: str, limit_s: float, key: str) -> Message:
        """Return the next message of a kind; others that come before it are dropped.

        Args:
            key: of the configuration, which says ``limit_s``.

        Raises:
            EngineError: the process has ended, or the message has not come in time.
        """
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            for message in self.exchange(0.1):
                if message.kind == kind:
                    return message
        raise self.hung(limit_s, key)

    def hung(self, limit_s: float, key: str) -> EngineError:
        """Makes the error of an engine process that was silent for too long, with the place where it stands."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACK_S)
        return EngineError(
            f"the inference engine (pid {self.pid}) did not answer for {limit_s:g} s; it stood at:",
            f"if it is only slow, raise {key}; its log is {self.log}",
            tail(self.log),
        )

    def _failed(self, message: Message) -> EngineError:
        said = f"the inference engine (pid {self.pid}) failed: {message.fields['error']}"
        return EngineError(said, f"{self._remedy}; its log is {self.log}", message.fields["traceback"])

    def _died(self) -> EngineError:
        self.close()
        code = self._process.returncode
        how = "does not answer, and SIGKILL does not end it" if code is None else how_it_ended(code)
        said = f"the inference engine (pid {self.pid}) {how}"
        return EngineError(said, f"{self._remedy}; its log is {self.log}", tail(self.log))

    def close(self) -> None:
        """End it, with the processes that it has started. What a signal does not end is left."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STACK_S)  # it ends by itself if it reads; else it has nothing to lose
        self._process.end()
