"""openpi's websocket protocol, and that of our own server, through ``embodied.client``."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from embodied.client import wire
from embodied.client.connection import Busy as ClientBusy
from embodied.client.connection import Connection, Lost
from embodied.client.replies import read_actions, read_metadata, read_replies, read_reply
from embodied.client.tls import certificate_fix, tls_context
from embodied.errors import EmbodiedError, ServerRefusedError, WireError
from embodied.types import Noise

from . import AUTHORITY, URL, Address, Busy, Gone, Line, Question, Told


def connect(address: Address, deadline: float) -> Line:
    """See :func:`embodied.models.served.dialects.dialect`."""
    headers = {} if address.token is None else {"Authorization": f"Api-Key {address.token}"}
    context = tls_context(address.url, address.ca_file)
    try:
        connection = Connection(address.url, headers, context, deadline, address.timeout_s)
    except Lost as lost:
        raise Gone(str(lost)) from lost
    except ServerRefusedError as error:
        raise _refused(address, error) from error
    try:
        return OpenpiLine(connection, told(read_metadata(connection.receive(deadline))))
    except Lost as lost:
        connection.drop()
        raise Gone(f"connected, and then: {lost}") from lost
    except BaseException:
        connection.drop()
        raise


class OpenpiLine:
    """See :class:`embodied.models.served.dialects.Line`. Several questions are one frame."""

    def __init__(self, connection: Connection, told: Told) -> None:
        self.told, self._connection, self._asked = told, connection, 0

    def infer(self, questions: Sequence[Question], deadline: float) -> list[np.ndarray]:
        """See :meth:`embodied.models.served.dialects.Line.infer`."""
        first = self._asked + 1
        self._asked += len(questions)
        requests = [self._request(question, number) for number, question in enumerate(questions, first)]
        one = len(requests) == 1
        try:
            self._connection.send(wire.pack(requests[0] if one else {wire.REQUESTS: requests}))
            frame = self._connection.receive(deadline)
            replies = [read_reply(frame)] if one else read_replies(frame, len(requests))
        except ClientBusy as busy:
            raise Busy(str(busy)) from busy
        except Lost as lost:
            raise Gone(str(lost)) from lost
        # openpi's policies give float64, and some other servers int64: what they mean is checked by whoever asked.
        return [read_actions(reply, number) for number, reply in enumerate(replies, first)]

    def _request(self, question: Question, number: int) -> dict[str, Any]:
        own: dict[str, Any] = {wire.REQUEST_ID: number} if self.told.draws else {}
        if self.told.draws:
            drawn = wire.DRAW if self.told.facts.get("draw") else wire.SESSION  # of older servers the second best
            own |= {wire.GREEDY: question.greedy, drawn: question.session}
        if question.noise is not None:
            own[wire.NOISE] = question.noise
        return {**question.fields, **own}

    def close(self) -> None:
        """See :meth:`embodied.models.served.dialects.Line.close`."""
        with suppress(OSError):
            self._connection.drop()


def told(facts: Mapping[str, Any]) -> Told:
    """Reads the metadata of a server. One of openpi says little or nothing, ours all that is compared with the env.

    Raises:
        WireError: a server that calls itself ours says something that it cannot mean.
    """
    if facts.get("server") != "embodied":
        return Told(facts)
    try:
        action = facts["action"]
        chunk, dim = (int(size) for size in facts["action_shape"])
        low, high = (tuple(map(float, action[name])) if name in action else None for name in ("low", "high"))
        return Told(
            facts, chunk, dim, low, high,
            num_actions=int(action["num_actions"]) if "num_actions" in action else None,
            control_hz=float(facts["control_hz"]), cameras=tuple(map(str, facts["cameras"])),
            observation={
                str(name): (tuple(map(int, field["shape"])), str(field["dtype"]))
                for name, field in facts["observation"].items()
            },
            draws=True, greedy_noise=bool(facts.get("greedy_noise", False)), repeatable=True, noise=_noise(facts),
            max_batch=max(1, int(facts.get("requests", 1))),
            max_bytes=int(facts["limits"]["max_bytes"]) if "limits" in facts else None,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(
            f"the server's metadata cannot be read: {type(error).__name__}: {error}",
            "see whether the server is of the same version as this program",
        ) from error


def _noise(facts: Mapping[str, Any]) -> Noise | None:
    """Reads what a request may bring; None: an older server, which takes none."""
    if (said := facts.get("noise")) is None:
        return None
    shape, kind = tuple(map(int, said["shape"])), str(said["kind"])
    uniform, greedy = int(said["uniform"]), int(said["greedy"])
    most = shape[0] if shape else 0
    if kind not in ("uniform", "normal") or min((*shape, uniform, greedy)) < 0 or max(uniform, greedy) > most:
        raise ValueError(f"noise {dict(said)}")
    return Noise(shape, kind, uniform, greedy)


def _refused(address: Address, error: ServerRefusedError) -> EmbodiedError:
    """The same in words of the configuration's keys."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ServerRefusedError(error.message, certificate_fix(cause, URL, AUTHORITY))
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in (401, 403):
        return ServerRefusedError(
            error.message, "set actor.model.token_file, or EMBODIED_SERVE_TOKEN, to the token of that server"
        )
    return ServerRefusedError(error.message, "give the address of a policy server that speaks openpi's protocol")
