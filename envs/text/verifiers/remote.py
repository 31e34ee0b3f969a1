"""A service that judges responses over HTTP."""

from __future__ import annotations

import http.client
import json
import math
import random
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from embodied.errors import ConfigError

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .answers import canonical
from .full_prompt import FullPrompts

MAX_ANSWER_BYTES = 2**20
SHOWN = 200
"""Characters of an answer that a message shows."""


class Answer(NamedTuple):
    """The outcome of one HTTP request to a reward service."""

    status: int | None  # None: the service could not be reached
    text: str  # its answer, or the connection's error

    @property
    def temporary(self) -> bool:
        """Whether repeating the request may help."""
        return self.status is None or self.status == 429 or self.status >= 500


class Remote:
    """Verifier that asks a service over HTTP: POSTs ``{"prompt", "response", "answer", "fields"}`` as JSON, and reads
    ``{"score": 1.0}``.

    Where the service cannot be reached, is slow, or answers 429 or 5xx, it is asked again, after waits that double and
    are spread by a factor from 0.5 to 1.5. The factor is drawn from the request, so it repeats. Another status of 4xx
    or 3xx is an error at once. An answer without a score costs this response its verdict only.

    A run whose service stays down ends with an error; it goes on from its last checkpoint. A reward of 0 in place of
    the service's would be learned from.

    Args:
        timeout_s: for one request, seconds.
        retries: after the first request.
        backoff_s: mean wait before the first retry, seconds. All requests and waits together have to take less than the
            deadline of the env's step.
        score_key: where the score stands in the answer; ``a.b`` for ``{"a": {"b": 1.0}}``.
        answer_key: where the service says what it took for the response's answer (null: it found none), if it does.
        headers: of each request, e.g. ``{"Authorization": "Bearer …"}``.
        success_at: score from which on a response is right.
        functions: names of the service's reward functions with their weights; sent as ``"reward_fn"``. None = not sent.
        prompt: send ``"prompt"`` (``data.return_raw_chat``).
        full_prompt: send ``"full_prompt"``, too: arguments of :class:`~.full_prompt.FullPrompts`.

    Raises:
        ConfigError: ``url`` is not of http or https, or a number is out of range.
    """

    bounded = True

    def __init__(
        self, url: str, timeout_s: float = 10.0, retries: int = 5, backoff_s: float = 0.5, score_key: str = "score",
        headers: Mapping[str, str] | None = None, success_at: float = 1.0, answer_key: str | None = None,
        functions: Mapping[str, float] | None = None, prompt: bool = True,
        full_prompt: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if not _is_url(url):
            raise ConfigError(f"url is {url!r}, expected http://… or https://…", "set url to that of the service")
        if timeout_s <= 0 or retries < 0 or backoff_s < 0:
            raise ConfigError(
                f"timeout_s is {timeout_s}, retries {retries}, backoff_s {backoff_s}", "set them to more than 0"
            )
        self._url, self._timeout_s, self._retries, self._backoff_s = url, timeout_s, int(retries), backoff_s
        self._score_key, self._answer_key, self._success_at = score_key, answer_key, success_at
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._more = {} if functions is None else {"reward_fn": dict(functions)}
        self._prompt, self._full = prompt, FullPrompts.of(full_prompt)
        self._opener = urllib.request.build_opener(_AsItIs)

    def load(self) -> None:
        """Reads the tokenizer for full prompts, if they are sent."""
        if self._full is not None:
            self._full.load()

    @property
    def longest_s(self) -> float:
        """Seconds that a verdict takes at most."""
        waits = self._backoff_s * 1.5 * (2**self._retries - 1)
        return (self._retries + 1) * self._timeout_s + waits

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`ConfigError` if the service refuses the request or stays down, :class:`VerifierFailed` if its
        answer holds no finite score."""
        body = self._body(problem, response)
        began, random_source = time.monotonic(), random.Random(body)
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._backoff_s * 2 ** (attempt - 1) * (0.5 + random_source.random()))
            answer = self._ask(body)
            if not answer.temporary:
                break
        if answer.temporary:
            raise ConfigError(
                f"the reward service {self._url} gave no answer to {self._retries + 1} requests in "
                f"{time.monotonic() - began:.1f} s, the last time: {_said(answer)}",
                "start the service and run again, which goes on from the last checkpoint; if it is only slow, raise "
                "timeout_s or retries",
            )
        if answer.status is None or not 200 <= answer.status < 300:
            raise ConfigError(
                f"the reward service {self._url} refused problem {problem.number}: {_said(answer)}",
                "correct url and headers, or the service; this status is not tried again",
            )
        try:
            found = json.loads(answer.text)
        except (ValueError, RecursionError):
            found = None
        reward = self._score(found, answer.text)
        return Verdict(reward, reward >= self._success_at, self._answer(found, answer.text))

    def _body(self, problem: Problem, response: str) -> bytes:
        prompts = {"prompt": problem.prompt} if self._prompt else {}
        prompts |= {} if self._full is None else {"full_prompt": self._full(problem)}
        sent = {**prompts, "response": response, "answer": problem.answer, "fields": problem.fields, **self._more}
        try:
            return json.dumps(_plain(sent)).encode()
        except TypeError as error:
            raise ConfigError(
                f"problem {problem.number} cannot be sent as JSON: {error}", "leave that column out of the data"
            ) from None

    def _ask(self, body: bytes) -> Answer:
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return Answer(answer.status, _read(answer.read1, deadline))
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            return Answer(None, f"{type(error).__name__}: {error}")

    def _score(self, said: Any, text: str) -> float:
        found = self._value(said, text, self._score_key, "a number")
        try:
            score = float(found) if isinstance(found, int | float) else math.nan
        except OverflowError:
            score = math.inf
        if not math.isfinite(score):
            raise VerifierFailed(f"{self._url} gave the score {str(found)[:SHOWN]!r}, expected a finite number")
        return score

    def _answer(self, said: Any, text: str) -> str | None:
        if self._answer_key is None:
            return None
        found = self._value(said, text, self._answer_key, "a text")
        return "" if found is None else canonical(str(found))

    def _value(self, said: Any, text: str, key: str, expected: str) -> Any:
        """What stands under a key of the decoded ``text``."""
        found = said
        try:
            for part in key.split("."):
                found = found[part]
        except (KeyError, TypeError):
            raise VerifierFailed(
                f"{self._url} answered {text[:SHOWN]!r}, expected JSON with {expected} under '{key}'"
            ) from None
        return found


def _is_url(text: str) -> bool:
    """Whether a request can be sent there: what is no URL would look like a service that is down."""
    try:
        parts = urlsplit(text)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port or the host is malformed
        return False
    return named and text.isascii() and text.isprintable() and " " not in text


class _AsItIs(urllib.request.HTTPErrorProcessor):
    """Hands out answers of every status. A redirect is not followed: the POST would arrive as a GET without body."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


def _said(answer: Answer) -> str:
    return answer.text if answer.status is None else f"status {answer.status} {answer.text[:SHOWN]!r}"


def _read(read1: Callable[[int], bytes], deadline: float) -> str:
    """The whole answer. The connection's own time limit is one for each piece of it."""
    pieces, size = [], 0
    while piece := read1(65536):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise http.client.HTTPException(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer did not end in time")
    return b"".join(pieces).decode(errors="replace")


def _plain(value: Any) -> Any:
    """The value in the types of JSON; a number that is not finite becomes null."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
