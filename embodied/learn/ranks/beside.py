"""Work in a thread beside others, which may end while it still waits for other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Beside(threading.Thread, Generic[T]):
    """Runs ``work`` in a thread, which keeps no process from its end.

    Args:
        after: work that ends first: collectives of a group have an order. Its error is also this one's.
    """

    def __init__(self, work: Callable[[], T], after: Beside[T] | None = None) -> None:
        super().__init__(daemon=True, name="weights")
        self._work, self._after = work, after
        self._error: BaseException | None = None
        self._value: T
        self.start()

    def run(self) -> None:
        """Runs in the thread."""
        try:
            if self._after is not None:
                self._after.result()
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 (raised by result)
            self._error = error
        finally:
            self._after = None

    def result(self) -> T:
        """Waits for the end; returns what ``work`` has returned, or raises what it has raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._value


@contextmanager
def on_own_stream(device: torch.device) -> Iterator[None]:
    """Context whose work on a GPU waits for no other, and is done at its end."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
