"""SIGTERM and Ctrl-C as an exception that comes only where nothing is half done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Stopped(BaseException):
    """The user or the machine's scheduler wants the run to end."""


class StopSignal:
    """While entered, the first SIGTERM or SIGINT raises :class:`Stopped`; inside :meth:`hold` it waits until that ends.

    A second SIGTERM changes nothing (launchers send it on top of the scheduler's, and the checkpoint must not suffer);
    a second Ctrl-C is Python's usual KeyboardInterrupt, at once.
    """

    def __init__(self) -> None:
        self._held = self._wanted = False

    @property
    def wanted(self) -> bool:
        """Whether a signal has come."""
        return self._wanted

    def __enter__(self) -> StopSignal:
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let the block run to its end first: an update or a save must be whole or not at all."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._wanted:
            raise Stopped

    def hold_during(self, act: Callable[[], None]) -> None:
        """``act()`` inside :meth:`hold`, with which a signal is done: there is nothing more that it would stop."""
        with suppress(Stopped), self.hold():
            act()

    @contextmanager
    def cut_short(self) -> Iterator[None]:
        """Inside :meth:`hold`: a signal ends this block at once with :class:`Stopped`, which the caller suppresses. One
        that has come before does not let it begin."""
        self._held = False
        try:
            if self._wanted:
                raise Stopped
            yield
        finally:
            self._held = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self._wanted = not self._wanted, True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if first and not self._held:
            self._held = True  # nothing must interrupt what this one lets happen
            raise Stopped
