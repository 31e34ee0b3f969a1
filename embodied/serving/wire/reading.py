"""Reads frames of websockets: on the event loop what takes a fraction of a millisecond, in threads all else.

a frame of few values ─▶ event loop ─┬─▶ the question
                                     └─▶ pictures to decode ─▶ decoder threads ─▶ the last has the question
any other ─▶ decoder thread ─▶ in the same way

Of a frame that holds several requests, each is read in this way, for a sender of its own (:meth:`Asker.on_several`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from embodied.client import wire
from embodied.errors import EmbodiedError, RequestError, WireError
from embodied.serving.keys import IMAGES
from embodied.serving.metrics import Metrics
from embodied.serving.wire.requests import Draft, Options, Question, QuestionReader, options_of, unforeseen

log = logging.getLogger(__name__)

FEW = 256  # values, and bytes of a text, that are read without a thread
SMALL = 2 << 20  # bytes of a frame that is
NONE = Options()
NUMBERS = 1 << 13  # most numbers beside pictures that are read without a thread: each one is looked at


class Asker(Protocol):
    """Interface of a frame's sender, which is called back with what was read. Its methods are called on the event loop
    or in a thread."""

    gone: bool  # nobody waits any more: nothing is decoded that has not begun

    def on_options(self, request_id: int | str | None, ours: bool) -> None:
        """Receives the options of a frame beside its observation. ``ours``: it has keys that only this library's client
        sends."""

    def on_several(self, count: int) -> Sequence[Asker]:
        """Makes the senders of the ``count`` requests that a frame holds. This one is not called again."""
        ...

    def on_question(self, question: Question | EmbodiedError) -> None:
        """Receives the observation that was read, or the error, last. An error may still come after an observation,
        which is then lost."""


@dataclass(frozen=True)
class _Read:
    found: Draft | RequestError | WireError | Sequence[_Read]  # several: of a frame that holds as many requests
    request_id: int | str | None = None
    ours: bool = False


class Frames:
    """Decodes binary frames into observations, pictures in threads.

    Args:
        max_bytes: of a frame.
        decoders: threads.
        most: requests that a frame may hold.
    """

    def __init__(
        self, reader: QuestionReader, max_bytes: int, decoders: Executor, metrics: Metrics, most: int = 1
    ) -> None:
        self._most = most
        self._reader, self._decoders, self._metrics = reader, decoders, metrics
        self._limits = wire.Limits(max_bytes=max_bytes)
        self._few = wire.Limits(max_bytes=min(max_bytes, SMALL), max_items=FEW, max_text=FEW)
        numbers = sum(math.prod(spec.shape) for name, spec in reader.env.obs.items() if name != IMAGES)
        self._in_threads = numbers > NUMBERS

    def read(self, data: bytes, asker: Asker) -> None:
        """Decodes a frame and calls the asker back, perhaps before this returns. Never raises: the asker gets every
        error."""
        self._guarded(asker, partial(self._begin, data, asker))

    def _begin(self, data: bytes, asker: Asker) -> None:
        began = time.perf_counter()
        read = None if self._in_threads else self._at_once(data)
        if read is None:
            self._submit(asker, lambda: self._go_on(self._whole(data), asker, began))
        else:
            self._go_on(read, asker, began)

    def _at_once(self, data: bytes) -> _Read | None:
        """None if there is too much in it."""
        try:
            message = wire.unpack(data, self._few)
        except WireError:
            return None
        return self._read(message)

    def _whole(self, data: bytes) -> _Read:
        try:
            return self._read(wire.unpack(data, self._limits))
        except WireError as error:
            return _Read(error)

    def _read(self, message: Any) -> _Read:
        if not isinstance(message, dict) or wire.REQUESTS not in message:
            return self._one(message)
        requests = message[wire.REQUESTS]
        if isinstance(requests, list) and 1 <= len(requests) <= self._most and len(message) == 1:
            return _Read([self._one(request) for request in requests], ours=True)
        got = f"{len(requests)} requests" if isinstance(requests, list) else f"a {type(requests).__name__}"
        error = RequestError(
            f"'{wire.REQUESTS}' is {got}, in a map of {len(message)} keys; expected a list of 1 to {self._most} "
            "requests, in a map of this key alone",
            "send as many at once as the server's metadata say (requests), each with its keys in its own map",
        )
        return _Read(error, ours=True)

    def _one(self, message: Any) -> _Read:
        options, ours = NONE, False
        try:
            if not isinstance(message, dict):
                raise RequestError(f"the request is a {type(message).__name__}, expected a map", "send a map of fields")
            ours = any(key.startswith(wire.OURS) for key in message)
            options = options_of(message) if ours else NONE
            return _Read(self._reader.draft(message, options), options.request_id, ours)
        except RequestError as error:
            return _Read(error, options.request_id, ours)
        except Exception as error:
            log.exception("a request could not be read")
            return _Read(unforeseen(error), options.request_id, ours)

    def _go_on(self, read: _Read, asker: Asker, began: float) -> None:
        asker.on_options(read.request_id, read.ours)
        if isinstance(read.found, EmbodiedError):
            asker.on_question(read.found)
        elif isinstance(read.found, Sequence):
            for part, one in zip(read.found, asker.on_several(len(read.found)), strict=True):
                self._guarded(one, partial(self._go_on, part, one, began))
        elif read.found.left:
            self._decode(read.found, asker, began)
        else:
            self._has(read.found, asker, began)

    def _has(self, draft: Draft, asker: Asker, began: float) -> None:
        self._metrics.note(self._metrics.decode.observe, time.perf_counter() - began)
        asker.on_question(draft.question())

    def _decode(self, draft: Draft, asker: Asker, began: float) -> None:
        """Decode the pictures that are left, side by side; the thread that ends last goes on with the question."""
        lock, left = threading.Lock(), len(draft.left)

        def decode(place: int) -> None:
            nonlocal left
            if asker.gone:
                return
            draft.decode(place)
            with lock:
                left -= 1
                last = not left
            if last:
                self._has(draft, asker, began)

        for place in draft.left:
            self._submit(asker, partial(decode, place))

    def _submit(self, asker: Asker, job: Callable[[], None]) -> None:
        self._decoders.submit(self._guarded, asker, job)

    def _guarded(self, asker: Asker, job: Callable[[], None]) -> None:
        """Runs ``job``, on the event loop or in a thread. The asker gets its error."""
        try:
            job()
        except EmbodiedError as error:
            asker.on_question(error)
        except Exception as error:
            log.exception("a request could not be asked")
            asker.on_question(unforeseen(error))
