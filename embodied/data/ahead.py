"""Reads batches in threads before they are asked for: files are read and pictures decoded while a step computes.

    order of batches ─▶ threads: read(chosen) ─▶ at most ``depth`` batches that wait ─▶ take(chosen), in that order

Which batches there are, and what is in them, does not depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

Batch = Mapping[str, np.ndarray]


class Ahead:
    """Reads the batches of ``order`` in threads, up to ``depth`` of them before their turn. A context: its end ends the
    threads.

    Args:
        read: makes a batch of the samples ``chosen``, int64 [B].
        order: the samples of each batch, in the order in which :meth:`take` asks for them.
        depth: batches that wait; 0 = each is read when it is asked for, without a thread.
    """

    def __init__(self, read: Callable[[np.ndarray], Batch], order: Iterable[np.ndarray], depth: int) -> None:
        self._read, self._order, self._depth = read, iter(order), depth
        self._waiting: deque[tuple[np.ndarray, Future[Batch]]] = deque()
        self._pool = ThreadPoolExecutor(depth, "read-ahead") if depth else None

    def __enter__(self) -> Ahead:
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def take(self, chosen: np.ndarray) -> Batch:
        """Returns the batch of the samples ``chosen`` int64 [B], the next one of the order. Raises what reading it has
        raised."""
        if self._pool is None:
            return self._read(chosen)
        expected, batch = self._waiting.popleft()
        assert np.array_equal(expected, chosen), "another batch is next"
        self._fill()
        return batch.result()

    def _fill(self) -> None:
        """Begins to read until ``depth`` batches wait, or there are no more."""
        while self._pool is not None and len(self._waiting) < self._depth:
            if (chosen := next(self._order, None)) is None:
                return
            self._waiting.append((chosen, self._pool.submit(self._read, chosen)))
