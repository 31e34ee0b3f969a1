"""Several requests of one frame: the policy is asked about all of them at once, and one frame answers them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from embodied.errors import EmbodiedError
from embodied.serving.service import Outcome, Service, Session, Ticket
from embodied.serving.wire.reading import Asker
from embodied.serving.wire.requests import Question, unforeseen

log = logging.getLogger(__name__)

Read = Question | EmbodiedError


class Together:
    """The requests of a frame.

    Args:
        session: that of the connection.
        answer: called on the event loop once each of :attr:`parts` has its outcome.
    """

    def __init__(
        self, count: int, service: Service, session: Session, loop: asyncio.AbstractEventLoop,
        answer: Callable[[], None],
    ) -> None:  # fmt: skip
        self.parts = [Part(self) for _ in range(count)]
        self._service, self._session, self._loop, self._answer = service, session, loop, answer
        self._lock = threading.Lock()  # guards what follows: decoder threads read pictures side by side
        self._read: dict[Part, Read] = {}
        self._asked = False  # and what was read is no longer held

    def give_up(self) -> None:
        """Marks all as abandoned: nobody waits for the answers."""
        for part in self.parts:
            part.gone = True

    def note_read(self, part: Part, found: Read) -> None:
        """Notes what was read of a request; asks the policy about all of them after the last one."""
        with self._lock:
            if not self._asked:
                self._read.setdefault(part, found)
            if self._asked or len(self._read) < len(self.parts):
                return
            self._asked, read, self._read = True, self._read, {}
        asked, failed = list[tuple[Question, Ticket]](), list[tuple[Ticket, EmbodiedError]]()
        for one in self.parts:
            if isinstance(question := read[one], Question):
                asked.append((question, one))
            else:
                failed.append((one, question))
        if failed := failed + self._ask(asked):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_deliver, failed)

    def _ask(self, asked: Sequence[tuple[Question, Ticket]]) -> list[tuple[Ticket, EmbodiedError]]:
        """Asks the policy; returns what is refused."""
        try:
            return self._service.submit_together(asked, self._session) if asked else []
        except EmbodiedError as error:
            return [(part, error) for _, part in asked]
        except Exception as error:
            log.exception("the requests of a frame could not be asked")
            return [(part, unforeseen(error)) for _, part in asked]

    def note_outcome(self) -> None:
        """Answers once all have an outcome. Called on the event loop."""
        if all(part.outcome is not None for part in self.parts):
            self._answer()


class Part(Ticket, Asker):
    """One request of a frame that holds several."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self.gone = False
        self.request_id: int | str | None = None
        self.outcome: Outcome | None = None

    def on_options(self, request_id: int | str | None, ours: bool) -> None:
        self.request_id = request_id

    def on_several(self, count: int) -> Sequence[Asker]:
        raise AssertionError("a request of several holds none")

    def on_question(self, question: Read) -> None:
        self._together.note_read(self, question)

    def deliver(self, outcome: Outcome) -> None:
        if not self.gone and self.outcome is None:
            self.outcome = outcome
            self._together.note_outcome()


def _deliver(failed: Sequence[tuple[Ticket, EmbodiedError]]) -> None:
    for part, error in failed:
        part.deliver(error)
