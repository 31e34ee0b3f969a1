"""Connections to a policy server, each with a thread of its own, and the questions that wait for them.

    put(number, question) ─▶ │ waiting │ ─ take() ─▶ thread: Line.infer ─▶ │ answers │ ─▶ take()
                                                       └ lost: connect anew, compare the policy, ask again

What was put is sent by the next ``take``, so that questions of the same moment are one request where the server takes
that: sent one by one, the first would have a call of the policy to itself, and the others would wait for the next. No
question waits for one that has not been put.

A question is sent again when its connection is lost: answering twice harms nobody. It is given up when the server was
away for too long.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from embodied.errors import EmbodiedError, ServerLostError

from .dialects import Address, Busy, Connect, Gone, Line, Question, Told

T = TypeVar("T")
PAUSE_S = (0.05, 2.0)  # seconds before the third attempt, and before any later one at most
CONNECTS_S = 10.0  # longest attempt to connect: a machine that is gone does not even refuse


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for, in seconds."""

    first_s: float  # until the first connection stands
    away_s: float  # until a server answers again that was lost


class _Held:
    """A connection that is made when it is needed, and again after it was lost."""

    def __init__(self, make: Callable[[], Line]) -> None:
        self._make = make
        self._line: Line | None = None

    def line(self) -> Line:
        """Returns the connection, which stands."""
        if self._line is None:
            self._line = self._make()
        return self._line

    def lose(self) -> None:
        """Closes it."""
        if self._line is not None:
            self._line.close()
        self._line = None


class Crew:
    """Asks a policy server over several connections.

    Args:
        connect: of a protocol.
        most: connections beside :meth:`direct`'s. One is made when a question waits and none is free.
        verify: given each connection that is made after :meth:`direct`'s first; raises an error if another policy
            answers there.
    """

    def __init__(
        self, connect: Connect, address: Address, most: int, patience: Patience, verify: Callable[[Line], None]
    ) -> None:
        self._connect, self._address, self._most = connect, address, most
        self._patience, self._verify = patience, verify
        self._lock = threading.Condition()  # guards what follows
        self._waiting: deque[tuple[int, Question]] = deque()
        self._asked: set[int] = set()  # numbers that are neither answered nor forgotten
        self._threads: list[threading.Thread] = []
        self._idle, self._ended = 0, False
        self._told = Told()  # by the newest connection
        self._fresh = False  # something was put since the last ``take``
        self._answers: SimpleQueue[tuple[Sequence[int], Sequence[np.ndarray] | Exception]] = SimpleQueue()
        self._own = _Held(self._opened)  # that of ``direct``
        self.connections = 0  # made so far

    def __deepcopy__(self, memo: object) -> Crew:
        """A copy of a policy asks over the same connections."""
        return self

    # -- of the thread that owns the policy --------------------------------------------------------------------------

    def direct(self, use: Callable[[Line], T]) -> T:
        """Returns what ``use`` returns of a connection of this thread's own, which is made anew if it was lost.

        Raises:
            ServerLostError: no server answers there in time.
            EmbodiedError: what ``use`` and the comparison raise.
        """
        limit = self._patience.away_s if self.connections else self._patience.first_s
        return self._persist(lambda: use(self._own.line()), self._own.lose, limit, lambda: True)

    def put(self, number: int, question: Question) -> None:
        """Queues a question, which :meth:`take` sends."""
        with self._lock:
            self._asked.add(number)
            self._waiting.append((number, question))
            self._fresh = True

    def _send(self) -> None:
        """Lets threads take the questions that wait: as few as these fill requests."""
        with self._lock:
            self._fresh = False
            self._wake()

    def _wake(self) -> None:
        """Wakes as many threads as the questions that wait need; starts those that are missing. Under the lock."""
        needed = -(-len(self._waiting) // self._told.max_batch)
        for _ in range(min(needed - self._idle, self._most - len(self._threads))):
            thread = threading.Thread(target=self._work, name=f"served {len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._lock.notify(needed)

    def take(self, timeout_s: float) -> list[tuple[int, np.ndarray]]:
        """Sends what was put; waits for an answer, at most ``timeout_s`` seconds; returns all that are there.

        Raises:
            EmbodiedError: a question that was not forgotten cannot be answered.
        """
        if self._fresh:
            self._send()
        found: list[tuple[int, np.ndarray]] = []
        with suppress(Empty):
            numbers, answers = self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait()
            while True:
                found += self._wanted(numbers, answers)
                numbers, answers = self._answers.get_nowait()
        return found

    def _wanted(
        self, numbers: Sequence[int], answers: Sequence[np.ndarray] | Exception
    ) -> list[tuple[int, np.ndarray]]:
        with self._lock:
            wanted = [number in self._asked for number in numbers]
            self._asked.difference_update(numbers)
        if isinstance(answers, Exception):
            if any(wanted):
                raise answers
            return []
        return [pair for pair, asked in zip(zip(numbers, answers, strict=True), wanted, strict=True) if asked]

    def drop(self, number: int) -> None:
        """Forgets a question."""
        with self._lock:
            self._asked.discard(number)
            self._waiting = deque(pair for pair in self._waiting if pair[0] != number)

    def close(self) -> None:
        """Closes the connections. Questions that wait are not answered."""
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        self._own.lose()

    # -- in the threads ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        held = _Held(self._opened)
        while batch := self._next():
            numbers, questions = [number for number, _ in batch], [question for _, question in batch]
            try:
                self._answers.put((numbers, self._ask(held, numbers, questions)))
            except Exception as error:  # noqa: BLE001 (the thread that asked raises it)
                held.lose()
                self._answers.put((numbers, error))
        held.lose()

    def _ask(self, held: _Held, numbers: Sequence[int], questions: Sequence[Question]) -> list[np.ndarray]:
        def act() -> list[np.ndarray]:
            line, found = held.line(), list[np.ndarray]()
            while rest := questions[len(found) :]:  # again, if what answers now takes fewer at once
                part = rest[: fitting(rest, line.told)]
                found += line.infer(part, time.monotonic() + self._address.timeout_s)
            return found

        return self._persist(act, held.lose, self._patience.away_s, lambda: self._is_wanted(numbers))

    def _next(self) -> list[tuple[int, Question]]:
        """Waits for questions; returns those of a request, none at the end."""
        with self._lock:
            self._idle += 1
            while not self._waiting and not self._ended:
                self._lock.wait()
            self._idle -= 1
            if self._ended:
                return []
            count = fitting([question for _, question in self._waiting], self._told)
            batch = [self._waiting.popleft() for _ in range(count)]
            if self._waiting and count < self._told.max_batch:  # large ones: more threads than were woken
                self._wake()
            return batch

    def _is_wanted(self, numbers: Sequence[int]) -> bool:
        with self._lock:
            return not self._ended and any(number in self._asked for number in numbers)

    def _opened(self) -> Line:
        """Connects. What answers there is compared with what answered before, unless it is the first."""
        line = self._connect(self._address, time.monotonic() + min(CONNECTS_S, self._address.timeout_s))
        try:
            if self.connections:
                self._verify(line)
        except BaseException:
            line.close()
            raise
        self.connections += 1
        self._told = line.told
        return line

    def _persist(self, act: Callable[[], T], lose: Callable[[], None], limit_s: float, wanted: Callable[[], bool]) -> T:
        """Calls ``act`` again, after growing pauses, while the server is gone and there is time.

        Raises:
            ServerLostError: there is none left, or nobody wants the answer any more.
        """
        since: float | None = None  # when the server was found to be gone
        for pause in pauses():
            began = time.monotonic()
            try:
                return act()
            except Gone as gone:
                if isinstance(gone, Busy):
                    pause = max(pause, PAUSE_S[0])
                else:
                    lose()
                since = began if since is None else since
                if time.monotonic() + pause >= since + limit_s or not wanted():
                    raise self._lost(gone, time.monotonic() - since) from gone
            time.sleep(pause)
        raise AssertionError

    def _lost(self, gone: Gone, seconds: float) -> EmbodiedError:
        url = self._address.url
        if not self.connections:
            return ServerLostError(
                f"nobody answers at {url} ({gone}), tried for {seconds:.0f} s",
                "see whether the server runs and listens there, and correct actor.model.url; one that takes long to "
                "start needs a larger actor.model.connect_s",
            )
        return ServerLostError(
            f"{url} has given no answer for {seconds:.0f} s: {gone}",
            "see the server's log; answers that take longer need a larger actor.model.timeout_s "
            f"({self._address.timeout_s:g} now), a restart that takes longer a larger actor.model.reconnect_s "
            f"({self._patience.away_s:g} now)",
        )


def fitting(questions: Sequence[Question], told: Told) -> int:
    """Returns how many of the first questions are one request: 1 at least."""
    sizes = itertools.accumulate(question.most_bytes for question in questions[: told.max_batch])
    return max(1, sum(told.max_bytes is None or size <= told.max_bytes for size in sizes))


def pauses() -> Iterator[float]:
    """Yields seconds to wait before the next attempt: none, then doubled up to two."""
    yield 0.0
    pause, longest = PAUSE_S
    while True:
        yield min(pause, longest)
        pause = min(2 * pause, longest)
