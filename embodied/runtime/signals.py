"""Handles SIGTERM and Ctrl-C: answers on the terminal at once, and raises only where nothing is half done."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from embodied.errors import Stopped as Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FOR_WORK = 0.5
"""Share of the granted time in which work may still be finished; the rest is for saving and for ending the workers."""


class StopSignal:
    """While entered, the first SIGTERM or SIGINT raises :class:`Stopped`; inside :meth:`hold` it waits until that ends.

    A second SIGTERM changes nothing (launchers send it on top of the scheduler's, and the checkpoint must not suffer);
    a second Ctrl-C is Python's usual KeyboardInterrupt, at once.

    The answer on the terminal comes from a thread that the signal wakes: Python runs handlers between two instructions,
    and a backward pass is one instruction of minutes.

    Args:
        timeout_s: seconds in which the run has to end after a signal.
        name: what the answer on the terminal begins with, e.g. ``rank 1: ``.
    """

    def __init__(self, timeout_s: float = 20.0, name: str = "") -> None:
        self._timeout_s, self._name = timeout_s, name
        self._held = False
        self._came_at: float | None = None
        self._answered, self._interrupts = False, 0
        self._ended_early = False
        self.number: int | None = None

    @property
    def wanted(self) -> bool:
        """True once a signal has come."""
        return self.number is not None

    @property
    def status(self) -> int:
        """Exit status of the command: 128 + the signal's number once one has come here, whatever was done by then, so
        that ``train && eval`` stops. SIGTERM's for a run that a signal to another process has ended; else 0."""
        if self.number is not None:
            return 128 + self.number
        return 128 + signal.SIGTERM if self._ended_early else 0

    @contextmanager
    def may_end(self) -> Iterator[None]:
        """Suppresses :class:`Stopped` of the block: what it has made is kept, and :attr:`status` says that it was ended
        early."""
        try:
            yield
        except Stopped:
            self._ended_early = True

    def grants(self, left_s: float | None) -> bool:
        """Returns whether work that needs ``left_s`` more seconds (None: nobody knows) may go on to its end."""
        if not self.wanted:
            return True
        if left_s is None or self._came_at is None:
            return False
        return time.monotonic() + left_s <= self._came_at + FOR_WORK * self._timeout_s

    def __enter__(self) -> StopSignal:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._listener = threading.Thread(target=self._listen, daemon=True, name="stop signal")
        self._listener.start()
        self._wakes_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakes_before)
        self._writer.close()
        self._listener.join()
        self._reader.close()

    def _listen(self) -> None:
        """Answers the first signal that stops the run, and counts how often Ctrl-C was pressed: Python runs the handler
        once for all that come within one call."""
        while number := self._reader.recv(1):
            if number[0] not in SIGNALS:
                continue
            self._interrupts += number[0] == signal.SIGINT
            if not self._answered:
                self._answered = True
                self._came_at = self._came_at or time.monotonic()
                self._answer(signal.Signals(number[0]).name)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the block run to its end first: an optimizer step or a save must be whole or not at all."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.wanted:
            raise Stopped

    @contextmanager
    def cut_short(self) -> Iterator[None]:
        """Inside :meth:`hold`: let a signal end this block at once with :class:`Stopped`, which the caller suppresses.
        After an earlier signal the block does not begin."""
        self._held = False
        try:
            if self.wanted:
                raise Stopped
            yield
        finally:
            self._held = True

    def hold_from_now(self) -> None:
        """Hold without end: from here on a signal is answered, and ends only a block of :meth:`cut_short`."""
        self._held = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.wanted:
            return
        self.number, self._came_at = number, self._came_at or time.monotonic()
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if not self._held:
            self._held = True  # no later signal may interrupt the stop that begins here
            raise Stopped

    def _answer(self, name: str) -> None:
        text = (
            f"{self._name}{name}: stopping within {self._timeout_s:g} s, or as soon as the pass in progress is done. "
            "What can be resumed exactly is saved. Ctrl-C again ends the run without saving."
        )
        with suppress(OSError, ValueError):  # standard error may be closed
            print(text, file=sys.stderr, flush=True)
