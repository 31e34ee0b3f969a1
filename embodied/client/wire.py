"""Messages between a robot and a policy server: maps in msgpack, with arrays in openpi's encoding.

    frame = pack({"images": pictures, "state": state, "prompt": "open the drawer"})
    observation = unpack(frame)

An array is a map with the four keys ``__ndarray__`` (true), ``data`` (bytes in C order), ``dtype`` (as numpy writes it:
``<f4``, ``|u1``) and ``shape``. A scalar of numpy has ``__npgeneric__`` (true), ``data`` and ``dtype``. These keys are
bin; all other keys are str. dtypes are bool, whole numbers and floating-point numbers of at most 8 bytes, in either
byte order. Nothing else is decoded: no objects, no structures, no extension types. Nothing is unpickled.

:func:`unpack` checks each length before it allocates anything, and stops at the first of its :class:`Limits`. What it
cannot read is a :class:`~embodied.errors.WireError`, whatever the bytes are. Its arrays may be views of the frame, and
so read-only.

Each message is one binary frame of a websocket:

metadata
    The server's first frame. ``server`` ("embodied"), ``protocol`` (1), ``version``, ``action_shape`` [K, A],
    ``num_action_chunks`` (K), ``action`` {kind, low, high}, ``control_hz``, ``cameras`` (names), ``observation``
    {field: {shape, dtype}}, ``keys`` {key of a request: the field or camera that it fills}, ``greedy`` (unless a
    request says otherwise), ``greedy_noise`` (true if greedy actions are drawn, too), ``draw`` (true: it takes
    ``embodied/draw``), ``noise`` {shape, kind, uniform, greedy} (of ``embodied/noise``), ``continues`` (true if it goes
    on from ``embodied/left_over``; a server that does not say it may refuse this key), ``max_batch``, ``requests`` (how
    many a frame may hold; a server that does not say it takes no such frame), ``model`` (facts), ``limits``
    {max_bytes, …}.
request
    ``prompt`` (str) and the fields of ``observation``. Pictures: ``images`` uint8 [C, H, W, 3], or ``images`` as a list
    of C pictures, or ``images/CAMERA`` for each camera. A picture is uint8 [H, W, 3], or the bytes of a JPEG or PNG
    file. Optional are

    - ``embodied/request_id`` (int or str): comes back in the answer.
    - ``embodied/greedy`` (bool): the likeliest actions, or sampled ones.
    - ``embodied/delay_steps`` (int ≥ 0): the delay that the client has measured, in control steps.
    - ``embodied/left_over`` (float [n, A], n ≤ K, the env's units): what is left of the chunk before. The first action
      is that of the control step of the observation; the robot executes ``delay_steps`` of them until the answer.
    - ``embodied/session`` (int ≥ 0): when it changes, a session begins. Sampled actions are a function of the
      observation, the session's number and how many requests it has had before.
    - ``embodied/draw`` (int ≥ 0), of servers that say ``draw``: sampled actions of this request are a function of the
      observation and this number alone. It counts as no request of the session.
    - ``embodied/noise`` (float32 of the ``shape`` that the server tells): the random numbers of this request, in place
      of those that the server would draw. Greedy actions read the first ``greedy`` along the first axis alone; the
      last ``uniform`` are in [0, 1).
reply
    ``actions`` float32 [K, A] in the env's units (of an env of discrete actions int32 [K]), ``server_timing``
    {infer_ms, queue_ms, batch}, and ``embodied/request_id`` if the request had one.
several requests
    ``embodied/requests``: a list of requests, and no other key. They reach the policy together, so that they share its
    calls, and are answered in one frame: ``replies``, a list of a reply or an error for each.
error
    ``error`` {kind, message, fix}, and ``embodied/request_id`` if the request had one. ``kind`` is one of
    :data:`ERROR_KINDS`. A client gets such maps once it has sent a key that begins with ``embodied/``. Others get a
    text frame with the message, as openpi's client expects it.

The connection stays open after an error. It is closed with code 1009 after a frame that is too large, 1008 after idle
time, and 1001 when the server ends. A wrong token (status 401) and too many connections (503) are refused before the
connection is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied.client.frames import ARRAY, DATA, DTYPE, DTYPES, LIMITS, SCALAR, SHAPE, Limits, read_array, unpack
from embodied.errors import ConfigError, WireError

__all__ = ["DTYPES", "LIMITS", "Limits", "pack", "pack_plain", "plain_array", "read_array", "unpack"]

PROTOCOL = 1  # version of the messages above
PROMPT = "prompt"
ACTIONS = "actions"
ERROR = "error"
REPLIES = "replies"
OURS = "embodied/"  # beginning of the keys that openpi does not have
REQUESTS = f"{OURS}requests"
REQUEST_ID = f"{OURS}request_id"
GREEDY = f"{OURS}greedy"
DELAY_STEPS = f"{OURS}delay_steps"
SESSION = f"{OURS}session"
DRAW = f"{OURS}draw"
NOISE = f"{OURS}noise"
LEFT_OVER = f"{OURS}left_over"
ERROR_KINDS = {
    "wire": "the frame cannot be read",
    "request": "a field is missing, unknown, or has another shape or dtype than declared",
    "busy": "too many requests wait already, or this client sends too many",
    "draining": "the server ends and takes no new requests",
    "policy": "the policy failed on this observation",
}
"""Kinds of errors in replies. After ``busy`` the same request may be sent again."""


def pack(value: Any) -> bytes:
    """Returns ``value`` as one frame: maps with str keys, lists, arrays, scalars of numpy, text, bytes, numbers, bools
    and None.

    Raises:
        WireError: it holds something else, or an array of another dtype.
    """
    return pack_plain(_plain(value, LIMITS.max_depth))


def pack_plain(value: Any) -> bytes:
    """Packs ``value`` as one frame without checking it: in types that msgpack knows, arrays as :func:`plain_array`
    gives them."""
    packb = _msgpack().packb
    try:
        packed: bytes = packb(value, use_bin_type=True)
    except (OverflowError, ValueError) as error:
        raise WireError(f"cannot be sent: {error}", "send whole numbers of 64 bits and text of Unicode") from error
    return packed


def plain_array(values: np.ndarray) -> dict[bytes, Any]:
    """Returns an array in types that msgpack knows, without a copy of its numbers where they stand in C order. Raises
    WireError if its dtype may not travel."""
    _sendable(values.dtype)
    return {ARRAY: True, DATA: np.ascontiguousarray(values).data, DTYPE: values.dtype.str, SHAPE: values.shape}


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise ConfigError(
            "the Python package 'msgpack' is not installed", "pip install 'embodied-rl[client]'"
        ) from error
    return msgpack


def _plain(value: Any, depth: int) -> Any:
    """``value`` in types that msgpack knows."""
    if type(value) in _AS_THEY_ARE:
        return value
    if depth < (2 if isinstance(value, np.ndarray) else isinstance(value, Mapping | list | tuple | np.generic)):
        raise WireError(f"nested more than {LIMITS.max_depth} deep", "send fewer levels of maps and lists")
    if isinstance(value, Mapping):
        return {_key(key): _plain(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth - 1) for inner in value]
    if isinstance(value, np.ndarray):
        return plain_array(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.generic):
        _sendable(value.dtype)
        return {SCALAR: True, DATA: value.item(), DTYPE: value.dtype.str}
    raise WireError(
        f"a {type(value).__name__} cannot be sent",
        "send numpy arrays, text, bytes, numbers, lists and maps (a tensor: tensor.numpy())",
    )


_AS_THEY_ARE = {type(None), bool, int, float, str, bytes}


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise WireError(f"a map has the key {key!r}, expected text", "give every map keys of type str")
    return key


def _sendable(dtype: np.dtype) -> None:
    if dtype.str not in DTYPES:
        raise WireError(f"an array of dtype {dtype} cannot be sent", f"convert it to one of: {', '.join(DTYPES)}")
