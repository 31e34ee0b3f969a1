"""Protocols of policy servers, a module each. A module has a function ``connect``:

    connect(address, deadline) ─▶ Line: what the server tells of itself, and ``infer``

A :class:`Line` is one connection, used by one thread. It never connects anew by itself: what is above it does, and then
compares the policy behind the new connection with the one before. To add a protocol, write a module like
``openvla.py`` and name it in :data:`DIALECTS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from embodied.errors import ConfigError, did_you_mean
from embodied.types import Noise

DIALECTS = {"openpi": ("ws", "wss"), "openvla": ("http", "https"), "vla_eval": ("ws", "wss")}
"""Name of a protocol, which is that of its module → schemes of its addresses. The first that has the scheme of an
address is what ``protocol=auto`` means."""
URL = "actor.model.url"
AUTHORITY = "set actor.model.ca_file to the certificates (PEM) of the authority that signed it"


class Gone(Exception):
    """The connection cannot be made, is lost, or brings no answer: another one may. Holds the reason as a text."""


class Busy(Gone):
    """The server has too much to do, and is to be asked again later over the same connection."""


@dataclass(frozen=True)
class Address:
    """Where a policy server is, and how it is reached."""

    url: str  # e.g. ws://127.0.0.1:8000
    token: str | None = None
    ca_file: str | None = None  # certificates (PEM) of who signed the server's
    timeout_s: float = 30.0  # seconds that an answer may take


@dataclass(frozen=True)
class Question:
    """One request, in the protocol's own words."""

    fields: Mapping[str, Any]  # keys of the request, as the mapping names them → arrays, texts, numbers
    greedy: bool = True  # ask for the likeliest actions, where a request can say so
    session: int = 0  # below 2⁶²: equal questions of equal sessions are answered alike, where a request can say so
    noise: np.ndarray | None = (
        None  # random numbers of the decision, as ``Told.noise`` declares them; None: drawn there
    )
    place: tuple[int, int] | None = None  # (id of the episode, index of the decision in it); None: not known

    @property
    def most_bytes(self) -> int:
        """Bytes that its request takes at most, in a protocol that sends arrays as they are."""
        arrays = [*self.fields.values(), *(() if self.noise is None else (self.noise,))]
        return sum(200 + (value.nbytes if isinstance(value, np.ndarray) else 4 * len(str(value))) for value in arrays)


@dataclass(frozen=True)
class Told:
    """What a server tells of itself; None: it does not say."""

    facts: Mapping[str, Any] = field(default_factory=dict)  # all that it said, for people and for its identity
    num_action_chunks: int | None = None  # K of an answer
    action_dim: int | None = None  # A; 1 for actions that are numbers of a choice
    low: tuple[float, ...] | None = None  # [A], the env's units
    high: tuple[float, ...] | None = None
    num_actions: int | None = None  # N of an env of discrete actions
    control_hz: float | None = None
    cameras: tuple[str, ...] | None = None
    observation: Mapping[str, tuple[tuple[int, ...], str]] | None = None  # field → shape, dtype; then the fields of a
    # request are those of the env, and no mapping is needed
    draws: bool = False  # a request may ask for greedy actions, and for those of a session
    greedy_noise: bool = False  # its greedy actions differ from session to session
    repeatable: bool | None = None  # equal questions get equal answers; None: it is found out
    noise: Noise | None = None  # random numbers that a request may bring
    max_batch: int = 1  # questions that one ``infer`` takes, in one request
    max_bytes: int | None = None  # of a request; None: no limit


class Line(Protocol):
    """One connection to a policy server."""

    told: Told

    def infer(self, questions: Sequence[Question], deadline: float) -> list[np.ndarray]:
        """Returns the actions that answer up to ``told.max_batch`` questions, in their order, as the server gives them:
        numbers [H, A] or [A], whole numbers [H] of a choice. They are checked above.

        Args:
            deadline: ``time.monotonic()`` by which they are needed.

        Raises:
            Gone: the connection is lost, or there was no answer in time. The line is not used again.
            Busy: the same may be asked again later.
            ServerRefusedError: the server does not accept the question, and would not later.
            WireError: the answer is none.
        """
        ...

    def close(self) -> None:
        """Closes the connection; from any thread, also while ``infer`` waits, which then raises :class:`Gone`."""
        ...


Connect = Callable[[Address, float], Line]


def dialect(name: str, url: str) -> tuple[str, Connect]:
    """Returns the name of a protocol, and its ``connect``: of (address, monotonic deadline), which raises :class:`Gone`
    while nobody answers there, and an :class:`embodied.errors.EmbodiedError` for what stays.

    Args:
        name: of :data:`DIALECTS`, or "auto": what the scheme of ``url`` says.

    Raises:
        ConfigError: there is none such, or the URL has another scheme.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    if name == "auto":
        name = next((known for known, schemes in DIALECTS.items() if scheme in schemes), "")
        if not name:
            raise ConfigError(
                f"actor.model.url is '{url}', expected ws://, wss://, http:// or https:// with HOST:PORT",
                "give the address that the server prints, e.g. actor.model.url=ws://127.0.0.1:8000",
            )
    if name not in DIALECTS:
        raise ConfigError(
            f"actor.model.protocol is '{name}'.{did_you_mean(name, ('auto', *DIALECTS))}",
            f"choose one of auto, {', '.join(DIALECTS)}",
        )
    if scheme not in DIALECTS[name]:
        wanted = " or ".join(f"{one}://" for one in DIALECTS[name])
        raise ConfigError(
            f"actor.model.url is '{url}', and the protocol {name} has addresses that begin with {wanted}",
            f"give such an address, or choose another of actor.model.protocol: auto, {', '.join(DIALECTS)}",
        )
    module: Any = importlib.import_module(f".{name}", __name__)
    connect: Connect = module.connect
    return name, connect
