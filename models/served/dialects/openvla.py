"""OpenVLA's REST protocol: ``POST /act`` with arrays in JSON, as the servers of OpenVLA, OpenVLA-OFT and ours take it.

OpenVLA answers with one action [A], OpenVLA-OFT with a list of H actions. Both say failures with status 200 and the
text "error"; ours with a status of 400 or more. Nothing is told before the first answer.

A connection is kept open where the server does so. One that the server ends after each answer is made again without a
comparison: what answers is then compared when a rollout begins and ends, and not in between.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from embodied.client.tls import certificate_fix
from embodied.client.wire import LIMITS, read_array
from embodied.errors import ConfigError, ServerRefusedError, WireError

from . import AUTHORITY, URL, Address, Busy, Gone, Line, Question, Told

ARRAY = "__numpy__"
MAX_REPLY_BYTES = 16 << 20


def connect(address: Address, deadline: float) -> Line:
    """See :func:`embodied.models.served.dialects.dialect`."""
    line = OpenVLALine(address)
    line.open(deadline)
    return line


class OpenVLALine:
    """See :class:`embodied.models.served.dialects.Line`. One connection that is kept open, one question at a time."""

    told = Told()

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(
                f"actor.model.url '{address.url}': {error}", "give http://HOST:PORT or https://HOST:PORT"
            ) from error
        if not host:
            raise ConfigError(f"actor.model.url '{address.url}' names no host", "give http://HOST:PORT")
        self._url, self._path = address.url, parts.path.rstrip("/") or "/act"
        self._headers = {"Content-Type": "application/json"}
        if address.token is not None:
            self._headers["Authorization"] = f"Bearer {address.token}"
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=address.ca_file)
            except OSError as error:
                raise ConfigError(
                    f"actor.model.ca_file {address.ca_file} cannot be read: {error}",
                    "give a file of certificates (PEM)",
                ) from error
            self._http: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, context=context)
        else:
            self._http = http.client.HTTPConnection(host, port)

    def open(self, deadline: float) -> None:
        """Connects. Raises :class:`Gone`, or ServerRefusedError for a certificate that cannot be checked."""
        self._http.timeout = max(0.001, deadline - time.monotonic())
        try:
            self._http.connect()
        except ssl.SSLCertVerificationError as error:
            raise ServerRefusedError(
                f"the certificate of {self._url} is refused: {error.verify_message}",
                certificate_fix(error, URL, AUTHORITY),
            ) from error
        except OSError as error:
            raise Gone(f"{type(error).__name__}: {error}") from error

    def infer(self, questions: Sequence[Question], deadline: float) -> list[np.ndarray]:
        """See :meth:`embodied.models.served.dialects.Line.infer`."""
        return [self._one(question, deadline) for question in questions]

    def _one(self, question: Question, deadline: float) -> np.ndarray:
        body = json.dumps({key: as_json(value) for key, value in question.fields.items()}).encode()
        try:
            if self._http.sock is None:  # this server closes it after each answer
                self.open(deadline)
            self._http.sock.settimeout(max(0.001, deadline - time.monotonic()))
            self._http.request("POST", self._path, body, self._headers)
            reply = self._http.getresponse()
            data = reply.read(MAX_REPLY_BYTES + 1)
        except TimeoutError as error:
            raise Gone("no answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            raise Gone(f"{type(error).__name__}: {error}") from error
        if len(data) > MAX_REPLY_BYTES:
            raise WireError(
                f"the answer of {self._url} has more than {MAX_REPLY_BYTES >> 20} MiB", "see what serves there"
            )
        return self._read(reply.status, data)

    def _read(self, status: int, data: bytes) -> np.ndarray:
        if status in (429, 503):
            raise Busy(f"HTTP status {status}")
        if status in (401, 403):
            raise ServerRefusedError(
                f"{self._url} refuses the token (HTTP status {status})",
                "set actor.model.token_file, or EMBODIED_SERVE_TOKEN, to the token of that server",
            )
        shown = data[:300].decode(errors="replace")
        if status != 200:
            raise ServerRefusedError(
                f"{self._url}{self._path} answered with HTTP status {status}: {shown}",
                "see the server's log, and compare actor.model.mapping with the keys that it takes",
            )
        try:
            value = json.loads(data)
            if isinstance(value, str) and value[:1] in "[{":  # encoded twice
                value = json.loads(value)
        except ValueError as error:
            raise WireError(f"the answer of {self._url} is no JSON: {shown}", "see what serves there") from error
        if value == "error":
            raise ServerRefusedError(
                f"{self._url} answered 'error'",
                "see the server's log, and compare actor.model.mapping with the keys that it takes",
            )
        return actions_of(value, shown)

    def close(self) -> None:
        """See :meth:`embodied.models.served.dialects.Line.close`."""
        with suppress(OSError):
            self._http.close()


def as_json(value: Any) -> Any:
    """A value of a request, with arrays as the package json_numpy writes them."""
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {ARRAY: data, "dtype": value.dtype.str, "shape": list(value.shape)}
    return value


def actions_of(value: Any, shown: str) -> np.ndarray:
    """The actions in an answer: numbers [A] or [H, A].

    Raises:
        WireError: it holds none.
    """
    rows = value if isinstance(value, list) else [value]
    try:
        arrays = [_array(row) if isinstance(row, Mapping) else np.asarray(row) for row in rows]
        found = np.stack(arrays) if isinstance(value, list) else arrays[0]
    except (ValueError, TypeError) as error:
        raise WireError(f"the answer holds no actions: {shown}", "see what serves there") from error
    if found.dtype.kind not in "fiu" or found.ndim not in (1, 2) or not found.size:
        raise WireError(
            f"the answer holds {found.dtype} {list(found.shape)}, expected numbers [A] or [H, A]: {shown}",
            "see what serves there",
        )
    return found


def _array(row: Mapping[str, Any]) -> np.ndarray:
    if ARRAY not in row:
        raise ValueError(f"a map without {ARRAY}")
    data = base64.b64decode(row[ARRAY], validate=True)
    return read_array(row.get("dtype"), row.get("shape"), data, LIMITS)
