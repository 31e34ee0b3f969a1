"""Reads what a policy server sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embodied.client import wire
from embodied.client.connection import Busy, Lost
from embodied.errors import ServerRefusedError, WireError


def read_metadata(frame: bytes | str) -> Mapping[str, Any]:
    """Returns the metadata of a policy server from its first frame. Raises :class:`embodied.errors.WireError`."""
    metadata = None if isinstance(frame, str) else wire.unpack(frame)
    if not isinstance(metadata, Mapping):
        raise WireError(
            f"the server's first message is {_shown(frame)}, expected a map of facts",
            "give the address of a policy server that speaks openpi's protocol",
        )
    return metadata


def read_reply(frame: bytes | str) -> Mapping[str, Any]:
    """Returns the mapping in a policy server's answer frame.

    Raises:
        Busy, Lost: the server cannot answer now.
        ServerRefusedError: it cannot answer this request.
        WireError: it is no map.
    """
    if isinstance(frame, str):  # openpi's servers send the traceback as a text
        lines = frame.strip().splitlines() or ["an empty text"]
        raise ServerRefusedError(f"the server failed: {lines[-1]}", f"see the server's log; it said:\n{frame[-2000:]}")
    return _checked(wire.unpack(frame))


def read_replies(frame: bytes | str, count: int) -> Sequence[Mapping[str, Any]]:
    """Returns the mappings in the answer to ``count`` requests of one frame, in their order. Raises as
    :func:`read_reply`, also if one of them has failed."""
    replies = read_reply(frame).get(wire.REPLIES)
    if not isinstance(replies, list) or len(replies) != count:
        raise _no_answer(f"{_kind(replies)} under '{wire.REPLIES}', expected a list of {count}")
    return [_checked(reply) for reply in replies]


def _checked(message: Any) -> Mapping[str, Any]:
    """Returns a reply; raises what an error means."""
    if not isinstance(message, Mapping):
        raise _no_answer(f"{type(message).__name__}, expected a map")
    error = message.get(wire.ERROR)
    if error is None:
        return message
    told = error if isinstance(error, Mapping) else {"message": str(error)}
    if told.get("kind") in ("busy", "draining"):
        raise (Busy if told["kind"] == "busy" else Lost)(str(told.get("message")))
    raise ServerRefusedError(str(told.get("message")), str(told.get("fix") or "see the server's log"))


def read_actions(message: Mapping[str, Any], number: int) -> np.ndarray:
    """Returns the actions in the answer to request ``number``: float32 [K, A] or int32 [K].

    Raises:
        WireError: it answers another request, or holds no actions.
    """
    if (echoed := message.get(wire.REQUEST_ID, number)) != number:
        raise _no_answer(f"that to request {echoed}, expected the one to {number}")
    actions = message.get(wire.ACTIONS)
    if isinstance(actions, np.ndarray) and actions.size:
        if actions.ndim == 2 and actions.dtype.kind in "fiu":
            return np.array(actions, np.float32)
        if actions.ndim == 1 and actions.dtype.kind in "iu":
            return np.array(actions, np.int32)
    raise _no_answer(f"{_kind(actions)} under 'actions', expected numbers [K, A], or whole numbers [K]")


def _no_answer(what: str) -> WireError:
    return WireError(f"the server's answer is {what}", "see whether the server is of the same version as this client")


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


def _shown(frame: bytes | str) -> str:
    return f"the text '{frame[:200]}'" if isinstance(frame, str) else f"{len(frame)} bytes of something else"
