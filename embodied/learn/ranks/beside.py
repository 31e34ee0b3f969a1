"""Work in a thread beside others, which may end while it still waits for other processes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

from embodied.parallel import transfers

T = TypeVar("T")
LOOK_S = 0.1  # seconds between two looks at whether to wait on


class Beside(threading.Thread, Generic[T]):
    """Runs ``work`` in a thread, which keeps no process from its end. ``work`` is let go when it has ended, and what it
    returns once :meth:`result` has it.

    Args:
        after: work that ends first: collectives of a group have an order. Its error is also this one's.
    """

    def __init__(self, work: Callable[[], T], after: Beside[T] | None = None) -> None:
        super().__init__(daemon=True, name="weights ahead")
        self._work, self._after = work, after
        self._error: BaseException | None = None
        self._value: T
        transfers.begin(self)

    def run(self) -> None:
        """Runs in the thread."""
        try:
            after, self._after = self._after, None
            if after is not None:
                after.wait()
            del after
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 (raised by wait)
            self._error = error
        finally:
            del self._work

    def wait(self, gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Waits for the end, and raises what ``work`` has raised; returns False if ``gives_up`` said so before."""
        while self.is_alive() and not gives_up():
            self.join(LOOK_S)
        self.check()
        return not self.is_alive()

    def check(self) -> None:
        """Raises what ``work`` has raised by now."""
        if self._error is not None:
            raise self._error

    def result(self) -> T:
        """Waits for the end; returns what ``work`` has returned, once, or raises what it has raised."""
        self.wait()
        value = self._value
        del self._value
        return value


@contextmanager
def on_own_stream(device: torch.device) -> Iterator[None]:
    """Context whose work on a GPU waits for no other, and is done at its end."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream of all such work: what was free on another would not be used again."""
    return torch.cuda.Stream(device)
