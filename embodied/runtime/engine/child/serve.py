"""The process of an inference engine: ``PYTHON …/serve.py NAME FD``.

    launcher ── ask, cancel, load … ──▶ │ serve: between two steps it reads what has come │ ──▶ Engine.step
    launcher ◀── answer, alive … ────── │                                                 │ ◀── texts that are whole

It runs in an interpreter that has the engine and nothing of ours: it imports the standard library, the files of its own
folder, and the engine's package. The process ends when the launcher's end of the socket is closed.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from wire import Message, Reader, pack

ALIVE_S = 0.5  # interval between two signs of life
ENGINES = {"vllm": "vllm_engine"}  # name → module with a function ``make``


class Answer(NamedTuple):
    """A finished text of the inference engine, with the number of its request."""

    number: int
    tokens: Sequence[int]
    logprobs: Sequence[float]


class Engine(Protocol):
    """An inference engine as this process drives it: requests go in, texts come out."""

    version: str

    def begin(self, sampling: dict[str, Any]) -> None:
        """Set how the requests that follow are sampled."""

    def add(self, number: int, prompt: list[int], seed: int) -> None:
        """Add a request: prompt tokens, and the seed of its sampling."""

    def abort(self, number: int) -> None:
        """Forgets a request, which may be finished already."""

    @property
    def busy(self) -> bool:
        """True while some request is not finished."""
        ...

    def step(self) -> list[Answer]:
        """Advances all texts by a token or more; returns those that are finished."""
        ...

    def load(self, path: str) -> list[dict[str, Any]]:
        """Replace all weights by those of a file; return what was read of each tensor: name, dtype, shape, checksum."""
        ...

    def sleep(self) -> None:
        """Free the device's memory; the weights are kept."""

    def wake(self) -> None:
        """Take the device memory again that :meth:`sleep` has freed."""


class Server:
    """The engine process's end of the connection: carries out messages, and generates between them."""

    def __init__(self, connection: socket.socket, make: Callable[[dict[str, Any]], Engine]) -> None:
        self._connection, self._make = connection, make
        self._engine: Engine | None = None
        self._reader, self._said = Reader(), time.monotonic()

    def run(self) -> None:
        """Serves until the launcher hangs up."""
        waiting = select.poll()  # its number may be beyond what select() takes
        waiting.register(self._connection, select.POLLIN)
        while True:
            busy = self._engine is not None and self._engine.busy
            if waiting.poll(0 if busy else None):
                received = self._connection.recv(1 << 20)
                if not received:
                    return
                for message in self._reader.feed(received):
                    self._carry_out(message)
            if busy:
                self._generate()

    def _generate(self) -> None:
        assert self._engine is not None
        for number, tokens, logprobs in self._engine.step():
            body = array("i", tokens).tobytes() + array("f", logprobs).tobytes()
            self._say("answer", body, number=number, length=len(tokens))
        if time.monotonic() >= self._said + ALIVE_S:
            self._say("alive")

    def _carry_out(self, message: Message) -> None:
        fields = message.fields
        if message.kind == "setup":
            self._engine = self._make(fields)
            self._say("ready", version=self._engine.version)
            return
        engine = self._engine
        assert engine is not None, "setup is the first message"
        if message.kind == "begin":
            engine.begin(fields["sampling"])
        elif message.kind == "ask":
            engine.add(fields["number"], array("i", message.body).tolist(), fields["seed"])
        elif message.kind == "cancel":
            engine.abort(fields["number"])
        elif message.kind == "load":
            self._say("loaded", tensors=engine.load(fields["path"]))
        elif message.kind == "sleep":
            engine.sleep()
            self._say("slept")
        elif message.kind == "wake":
            engine.wake()
            self._say("awake")
        else:
            raise ValueError(f"unknown message {message.kind}")

    def _say(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        self._connection.sendall(pack(kind, body, **fields))
        self._said = time.monotonic()


def serve(fd: int, make: Callable[[dict[str, Any]], Engine]) -> int:
    """Serves an inference engine over the socket ``fd`` until the launcher hangs up; returns the exit status of the
    process.

    Args:
        make: makes the engine from the fields of ``setup``.
    """
    faulthandler.register(signal.SIGUSR1)  # the launcher asks a process that hangs where it stands
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends this process
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as connection:
        try:
            Server(connection, make).run()
        except (BrokenPipeError, ConnectionResetError):
            return 0  # the launcher has ended
        except Exception as error:  # noqa: BLE001  whatever the engine raises is shown by the launcher
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}"
            connection.sendall(pack("failed", error=said, traceback=traceback.format_exc()))
            return 1
    return 0


def make_named(name: str, setup: dict[str, Any]) -> Engine:
    """Makes the inference engine called ``name``. Its package is imported now: that may fail or hang, and the launcher
    is told."""
    return importlib.import_module(ENGINES[name]).make(setup)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):  # the log is UTF-8, whatever the locale is
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    status = serve(int(sys.argv[2]), partial(make_named, sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the engine must not hold the process
