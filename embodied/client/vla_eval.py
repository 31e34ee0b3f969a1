"""vla-eval's messages, version 1 of its protocol: maps ``{type, payload, seq, timestamp}`` in msgpack.

A benchmark is the client, a model server the server. Each message is one binary frame of a websocket:

======================  ============  ==================================================================================
type                    from          payload, and what answers it
======================  ============  ==================================================================================
``hello``               both          ``protocol_version``, ``harness_version``; a server's also ``observation_params``
                                      (arguments that the benchmark should be built with). A ``hello`` with its ``seq``
``episode_start``       client        ``task`` (a map). Nothing, or an ``error``
``observation``         client        ``images`` {camera: picture}, ``task_description``, ``state`` or ``states``, …
                                      An ``action`` or an ``error`` with its ``seq``
``action``              server        ``actions``: numbers [A] for one control step, or [H, A]
``episode_end``         client        results of the episode. Nothing
``error``               both          ``error`` (a text)
======================  ============  ==================================================================================

An array is a map with the keys ``__ndarray__``, ``data``, ``dtype`` and ``shape``. A picture may also be a map with
``__image__``, ``format`` (raw, png, jpeg), ``data`` and ``shape``. All keys are str. The limits of
:mod:`embodied.client.wire` hold; nothing is unpickled.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.client.frames import LIMITS, Limits, read_array, unpack
from embodied.client.wire import DTYPES, pack_plain
from embodied.errors import WireError, did_you_mean

PROTOCOL = 1
HELLO, OBSERVATION, ACTION, ERROR = "hello", "observation", "action", "error"
EPISODE_START, EPISODE_END = "episode_start", "episode_end"
TYPES = (HELLO, OBSERVATION, ACTION, EPISODE_START, EPISODE_END, ERROR)
ARRAY, IMAGE = "__ndarray__", "__image__"
ENCODED = ("png", "jpeg")
SEND = "send messages as the package vla-eval packs them (protocol version 1)"


@dataclass(frozen=True)
class Message:
    """One message. Arrays and pictures of a payload that was read are still maps (:func:`value_of`)."""

    type: str
    payload: Mapping[str, Any]
    seq: int = 0


def pack(message: Message) -> bytes:
    """Returns a message as one frame, with the time of now.

    Raises:
        WireError: its payload holds something that cannot travel.
    """
    sent = {"type": message.type, "payload": _plain(message.payload), "seq": message.seq, "timestamp": time.time()}
    return pack_plain(sent)


def read(data: bytes | str, limits: Limits = LIMITS) -> Message:
    """Returns the message of a frame.

    Raises:
        WireError: it is none, whatever the bytes are.
    """
    if isinstance(data, str):
        raise WireError("a text frame", "send binary frames")
    found = unpack(data, limits)
    if not isinstance(found, dict):
        raise WireError(f"a message that is a {type(found).__name__}, expected a map", SEND)
    kind, payload, seq = (found.get(key) for key in ("type", "payload", "seq"))
    if not isinstance(kind, str) or kind not in TYPES:
        hint = did_you_mean(kind, TYPES) if isinstance(kind, str) else ""
        raise WireError(f"a message of type {kind!r:.40}.{hint}", f"known ones are {', '.join(TYPES)}")
    if not isinstance(payload, dict):
        raise WireError(f"the payload of '{kind}' is a {type(payload).__name__}, expected a map", SEND)
    if type(seq) is not int or not 0 <= seq < 1 << 63:
        raise WireError(f"the seq of '{kind}' is {seq!r:.40}, expected a whole number of 0 or more", SEND)
    return Message(kind, payload, seq)


def is_marked(value: Any) -> bool:
    """Returns whether a value stands for an array or a picture."""
    return isinstance(value, Mapping) and (ARRAY in value or IMAGE in value)


def value_of(value: Any, limits: Limits = LIMITS) -> Any:
    """Returns a value with its array decoded. A picture in a file's format comes as the bytes of that file: nothing of
    it is decoded, and its size is not known yet. Values that are neither come as they are.

    Raises:
        WireError: it calls itself an array or a picture and is none.
    """
    if not is_marked(value):
        return value
    known = {"data", "dtype", "shape"} if ARRAY in value else {"data", "dtype", "shape", "format"}
    mark = ARRAY if ARRAY in value else IMAGE
    if value[mark] is not True or not value.keys() <= known | {mark}:
        raise WireError(f"an array with the keys {sorted(value)!r:.120}", SEND)
    form = value.get("format", "raw")
    if not isinstance(form, str) or form not in ("raw", *ENCODED):
        raise WireError(f"a picture of the format {form!r:.40}", f"send raw, {' or '.join(ENCODED)}")
    data = value.get("data")
    if form == "raw":
        return read_array(value.get("dtype"), value.get("shape"), data, limits)
    if not isinstance(data, bytes):
        raise WireError(f"a picture's data is a {type(data).__name__}, expected the bytes of a {form} file", SEND)
    return data


def array_of(values: np.ndarray) -> dict[str, Any]:
    """Returns an array as a map that can travel. Raises WireError if its dtype may not."""
    if values.dtype.str not in DTYPES:
        raise WireError(
            f"an array of dtype {values.dtype} cannot be sent", f"convert it to one of: {', '.join(DTYPES)}"
        )
    return {ARRAY: True, "data": values.tobytes(), "dtype": values.dtype.str, "shape": list(values.shape)}


def _plain(value: Any, depth: int = LIMITS.max_depth) -> Any:
    """The value in types that msgpack knows."""
    if depth == 0:
        raise WireError(f"nested more than {LIMITS.max_depth} deep", "send fewer levels of maps and lists")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise WireError("a map has a key that is no text", "give every map keys of type str")
        return {key: _plain(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth - 1) for inner in value]
    if isinstance(value, np.ndarray):
        return array_of(value)
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise WireError(f"a {type(value).__name__} cannot be sent", "send arrays, text, numbers, lists and maps")
