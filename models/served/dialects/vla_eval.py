"""vla-eval's protocol: policies behind its model servers (``vla-eval serve``). :mod:`embodied.client.vla_eval` has its
messages. A key ``images/NAME`` of a mapping is the picture NAME of the observation.

Its servers remember of a connection what belongs to an episode, such as the rest of a chunk whose actions they give one
by one. So each episode has a connection of its own, whichever thread asks; its first decision begins an episode there.
A question of no episode (``Question.place`` is None) begins one each time, over the line's own connection. An episode
whose connection was lost goes on over a new one, as at its beginning: what the server remembered of it is gone.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from embodied.client import vla_eval
from embodied.client.connection import Connection, Lost
from embodied.client.tls import tls_context
from embodied.errors import ServerRefusedError, WireError

from . import Address, Busy, Gone, Line, Question, Told
from .openpi import _refused

MOST = 256  # connections of episodes that are kept; that of the episode that asked least recently is closed beyond it
MAPPING = "see the server's log, and compare actor.model.mapping with the keys that it takes"
PICTURES = "images/"


def connect(address: Address, deadline: float) -> Line:
    """See :func:`embodied.models.served.dialects.dialect`."""
    with _LOCK:
        episodes = _EPISODES.get(address)
        if episodes is None:
            episodes = _EPISODES[address] = Episodes()
        episodes.lines += 1
    try:
        return VlaEvalLine(address, episodes, deadline)
    except BaseException:
        episodes.leave()
        raise


class Session:
    """A connection that has introduced itself. ``facts`` is what the server says of itself.

    Raises:
        Gone: nobody answers there at present.
        ServerRefusedError, WireError: what answers is no model server of vla-eval, or does not let this client in.
    """

    def __init__(self, address: Address, deadline: float) -> None:
        self._url, self._seq = address.url, 0
        self.next = 0  # index of the decision that the episode comes to
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        context = tls_context(address.url, address.ca_file)
        try:
            self._connection = Connection(address.url, headers, context, deadline, address.timeout_s)
        except Lost as lost:
            raise Gone(str(lost)) from lost
        except ServerRefusedError as error:
            raise _refused(address, error) from error
        try:
            self.facts = self._hello(deadline)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begins an episode."""
        self._send(vla_eval.EPISODE_START, {"task": {}})
        self.next = 0

    def ask(self, fields: Mapping[str, Any], deadline: float) -> np.ndarray:
        """Returns the actions that answer an observation; raises as :meth:`.Line.infer`."""
        reply = self._answer(vla_eval.OBSERVATION, observation(fields), deadline)
        if reply.type != vla_eval.ACTION:
            raise WireError(f"{self._url} answered an observation with '{reply.type}'", "see what serves there")
        self.next += 1
        return actions_of(reply.payload, self._url)

    def close(self) -> None:
        """Closes the connection; from any thread."""
        self._connection.drop()

    def _hello(self, deadline: float) -> Mapping[str, Any]:
        told = {"protocol_version": vla_eval.PROTOCOL, "harness_version": "embodied"}
        reply = self._answer(vla_eval.HELLO, told, deadline)
        version = reply.payload.get("protocol_version")
        if reply.type != vla_eval.HELLO or version != vla_eval.PROTOCOL:
            raise ServerRefusedError(
                f"{self._url} answered '{reply.type}' with protocol version {version!r:.40}, expected 'hello' and "
                f"{vla_eval.PROTOCOL}",
                "serve the policy with vla-eval 0.8, or another version that speaks this protocol",
            )
        return reply.payload

    def _answer(self, kind: str, payload: Mapping[str, Any], deadline: float) -> vla_eval.Message:
        seq = self._send(kind, payload)
        try:
            frame = self._connection.receive(deadline)
        except Lost as lost:
            raise Gone(str(lost)) from lost
        reply = vla_eval.read(frame)
        if reply.type == vla_eval.ERROR:
            raise _error(self._url, reply.payload)
        if reply.seq != seq:
            raise WireError(f"{self._url} answered message {reply.seq}, expected {seq}", "see what serves there")
        return reply

    def _send(self, kind: str, payload: Mapping[str, Any]) -> int:
        self._seq += 1
        try:
            self._connection.send(vla_eval.pack(vla_eval.Message(kind, payload, self._seq)))
        except Lost as lost:
            raise Gone(str(lost)) from lost
        return self._seq


class Episodes:
    """Connections of the episodes under way at one address, for all lines to it."""

    def __init__(self) -> None:
        self.lines = 0  # that are open
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Session] = OrderedDict()  # by id of the episode, least recently used first

    def take(self, episode: int) -> Session | None:
        """Returns the connection of an episode, for the caller alone; None if there is none."""
        with self._lock:
            return self._kept.pop(episode, None)

    def keep(self, episode: int, session: Session) -> None:
        """Keeps a connection for the episode's next question."""
        with self._lock:
            old = [self._kept.pop(episode)] if episode in self._kept else []
            self._kept[episode] = session
            while len(self._kept) > MOST:
                old.append(self._kept.popitem(last=False)[1])
        for one in old:
            one.close()

    def leave(self) -> None:
        """Counts a line off. The last one closes all."""
        with _LOCK:
            self.lines -= 1
            last = not self.lines
        with self._lock:
            old = [*self._kept.values()] if last else []
            if last:
                self._kept.clear()
        for one in old:
            one.close()


_LOCK = threading.Lock()
_EPISODES: WeakValueDictionary[Address, Episodes] = WeakValueDictionary()


class VlaEvalLine:
    """See :class:`embodied.models.served.dialects.Line`. One question at a time."""

    def __init__(self, address: Address, episodes: Episodes, deadline: float) -> None:
        self._address, self._episodes = address, episodes
        self._own = Session(address, deadline)
        self._asks: Session | None = None  # waits for an answer
        self._closed = False
        self.told = Told(self._own.facts)

    def infer(self, questions: Sequence[Question], deadline: float) -> list[np.ndarray]:
        """See :meth:`embodied.models.served.dialects.Line.infer`."""
        return [self._one(question, deadline) for question in questions]

    def _one(self, question: Question, deadline: float) -> np.ndarray:
        if question.place is None:
            self._own.begin()
            return self._own.ask(question.fields, deadline)
        episode, index = question.place
        session = self._asks = self._episodes.take(episode) or self._another(deadline)
        try:
            if self._closed:  # it was meanwhile, and ``close`` did not see this connection yet
                raise Gone("the connection was closed")
            if not index or session.next != index:
                session.begin()
                session.next = index
            actions = session.ask(question.fields, deadline)
        except Busy:
            self._episodes.keep(episode, session)
            raise
        except BaseException:
            session.close()
            raise
        finally:
            self._asks = None
        self._episodes.keep(episode, session)
        return actions

    def _another(self, deadline: float) -> Session:
        session = Session(self._address, deadline)
        if json.dumps(session.facts, sort_keys=True, default=str) != json.dumps(
            self.told.facts, sort_keys=True, default=str
        ):
            session.close()
            raise Gone("another server answers there")  # a new line compares the policies
        return session

    def close(self) -> None:
        """See :meth:`embodied.models.served.dialects.Line.close`."""
        if self._closed:
            return
        self._closed = True
        self._own.close()
        if (asks := self._asks) is not None:
            asks.close()
        self._episodes.leave()


def observation(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the payload of an observation: keys ``images/NAME`` as one map of pictures."""
    found = {key: value for key, value in fields.items() if not key.startswith(PICTURES)}
    pictures = {key.removeprefix(PICTURES): value for key, value in fields.items() if key.startswith(PICTURES)}
    return found | ({"images": pictures} if pictures else {})


def actions_of(payload: Mapping[str, Any], url: str) -> np.ndarray:
    """Returns the actions of an answer: numbers [A] or [H, A], or whole numbers [1] of a choice.

    Raises:
        WireError: it holds none.
    """
    value = vla_eval.value_of(payload.get("actions", payload.get("action")))
    try:
        found = np.asarray(value if isinstance(value, np.ndarray | list) else None)
    except ValueError:  # rows of different lengths
        found = np.asarray(None)
    if found.dtype.kind not in "fiu" or found.ndim not in (1, 2) or not found.size:
        shown = f"{found.dtype} {list(found.shape)}" if isinstance(value, np.ndarray | list) else type(value).__name__
        raise WireError(
            f"the answer of {url} has {shown} under 'actions', expected numbers [A] or [H, A]; its keys are "
            f"{', '.join(map(repr, [*payload][:20])) or 'none'}",
            "see what serves there",
        )
    return found


def _error(url: str, payload: Mapping[str, Any]) -> Exception:
    """The exception that an ``error`` means. Only our server says its kind."""
    said, kind, fix = payload.get("error"), payload.get("kind"), payload.get("fix")
    if kind in ("busy", "draining"):
        return (Busy if kind == "busy" else Gone)(str(said)[:2000])
    return ServerRefusedError(f"{url} answered with an error: {str(said)[:2000]}", str(fix)[:2000] if fix else MAPPING)
