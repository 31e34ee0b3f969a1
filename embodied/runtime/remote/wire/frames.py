"""The wire between a rollout and a simulator host: frames with a fixed head, and nothing pickled.

    head (fixed, authenticated) │ small (a struct, a text) │ large (the fields of an observation, slab to slab)

| frame                   | small                                                    | large       |
|-------------------------|----------------------------------------------------------|-------------|
| down: `COMMAND`         | how often the slot was lost; Command; for STEP the row   |             |
|                         | of actions, and of a filmed episode what videos show;    |             |
|                         | then video and draws as JSON                             |             |
| down: `FORGIVE`, `REST`, `WAKE`, `MEMORY` |                                        |             |
| up: `DONE`              | Completion; for STEP the result fields                   | observation |
| up: `LOST`, `BACK`, `RESTED`, `MEMORY` | JSON                                      |             |
| up: `NOTE`, `FAILED`    | text; an error as JSON                                   |             |
| `ALIVE`, `BYE`          |                                                          |             |

A head holds the number of its frame, the number of the last frame that its sender has taken, the sender's clock, sizes
and checks. The check of the head is a keyed hash (BLAKE2s) with a key of the connection, so that nobody else can write
a frame; the check of an observation is a weighted sum, which finds damage (30 µs for 393 kB; CRC-32 takes 180 µs).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from embodied import errors
from embodied.errors import EmbodiedError
from embodied.runtime.channel import Command, Completion, layout_of
from embodied.runtime.slab import FEATURES, INFO, Slab

PROTOCOL = 2
"""Number of this format; raise it with every change."""

COMMAND, COMPLETION = layout_of(Command), layout_of(Completion)
ATTEMPT = struct.Struct("<I")
"""Stands before a Command: how often the slot was lost. A command that was on its way then is dropped."""

RESULT = ("rewards", "num_steps", "terminated", "truncated", "success", "progress", "solved_at")
"""Fields that a worker writes into the row of a STEP, beside those of ``EnvSpec.info`` and the progress features."""

SHOWN = ("value", "logprobs", "length")
"""Fields of a decision that videos show (:mod:`embodied.runtime.worker.shown`)."""

MAX_SMALL = 1 << 24  # bytes of the small part


class FrameKind:
    """Kinds of frames."""

    COMMAND: Final = 1
    FORGIVE: Final = 2
    REST: Final = 3
    WAKE: Final = 4
    MEMORY: Final = 5
    DONE: Final = 10
    LOST: Final = 11
    BACK: Final = 12
    RESTED: Final = 13
    NOTE: Final = 14
    FAILED: Final = 15
    ALIVE: Final = 20  # has no number: a lost one is not sent again
    BYE: Final = 21


class DamagedFrame(Exception):
    """What came over a connection is not what was sent, or was not sent by the peer. The connection is not used any
    further."""


class Head(NamedTuple):
    """The head of a frame, as it travels before its check."""

    kind: int
    slot: int
    number: int  # 1, 2, …; 0 of a frame that is not numbered
    taken: int  # number of the last frame that the sender has taken
    clock: float  # the sender's CLOCK_MONOTONIC
    small: int  # bytes
    large: int
    small_check: bytes
    large_check: int


_HEAD = struct.Struct("<BiQQdII8sQ")
CHECK_BYTES = 16
HEAD_BYTES = _HEAD.size + CHECK_BYTES


class Frame(NamedTuple):
    """A frame that has been received whole; its observation stands in the rows that were named for it."""

    kind: int
    slot: int
    clock: float
    small: bytes


def pack_head(head: Head, key: bytes) -> bytes:
    """Returns the bytes of a head, with its check by the connection's ``key``."""
    packed = _HEAD.pack(*head)
    return packed + _keyed(packed, key, CHECK_BYTES)


def unpack_head(data: bytes, key: bytes) -> Head:
    """Reads the bytes of a head. Raises :class:`DamagedFrame` unless its check is right."""
    packed, check = data[: _HEAD.size], data[_HEAD.size :]
    if not hmac.compare_digest(check, _keyed(packed, key, CHECK_BYTES)):
        raise DamagedFrame("the head of a frame is damaged")
    head = Head(*_HEAD.unpack(packed))
    if head.small > MAX_SMALL:
        raise DamagedFrame(f"a frame of {head.small} bytes, and at most {MAX_SMALL} are sent")
    return head


def check_small(data: bytes, key: bytes) -> bytes:
    """Returns the check of a small part."""
    return _keyed(data, key, 8)


def _keyed(data: bytes, key: bytes, size: int) -> bytes:
    return hashlib.blake2s(data, key=key, digest_size=size).digest()


_COLUMNS = 128
_SPREAD = 0x9E3779B97F4A7C15  # odd: multiplied by it, nothing is lost modulo 2⁶⁴


def check_large(views: Iterable[memoryview]) -> int:
    """Returns the check of an observation, modulo 2⁶⁴: the sum of its words, in 128 columns and in rows that have a
    weight each. Every change of one word changes it, and so do words or blocks that change places."""
    total = 0
    for view in views:
        data = np.frombuffer(view, np.uint8)
        size = len(data) // (8 * _COLUMNS) * 8 * _COLUMNS
        words = data[:size].view(np.uint64).reshape(-1, _COLUMNS)
        columns, rows = _weighed(np.add.reduce(words, axis=0), 1), _weighed(np.add.reduce(words, axis=1), 2)
        total = (total + rows) * _SPREAD + columns + _check_rest(data[size:])
    return total & (1 << 64) - 1


def _weighed(sums: np.ndarray, first: int) -> int:
    """With odd weights for columns and even ones for rows, that of each word is odd: no bit of it is lost."""
    return int(np.dot(sums, np.arange(first, first + 2 * len(sums), 2, dtype=np.uint64)))


def _check_rest(data: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2s(data.tobytes(), digest_size=8).digest(), "little") if len(data) else 0


# -- rows ------------------------------------------------------------------------------------------------------------


Part = list[tuple[memoryview, int]]
"""Fields of all rows as bytes, with the bytes of one row."""


class Rows:
    """Fields of a slab's rows as they travel. Both ends have the same fields.

    Args:
        obs: names of an observation's fields.
    """

    def __init__(self, slab: Slab, obs: Iterable[str]) -> None:
        self._obs = self._part(slab, obs)
        self._result = self._part(slab, (*RESULT, *(name for name in slab.fields if name.startswith((INFO, FEATURES)))))
        actions = self._part(slab, ("actions",))
        self._decision = {False: actions, True: actions + self._part(slab, (n for n in SHOWN if n in slab.fields))}

    @staticmethod
    def _part(slab: Slab, names: Iterable[str]) -> Part:
        sizes = {name: slab.fields[name].nbytes for name in names}
        return [(slab.arrays[name].reshape(-1).view(np.uint8).data, size) for name, size in sizes.items() if size]

    def observation(self, row: int) -> list[memoryview]:
        """Returns writable views of the bytes of a row's observation."""
        return _views(self._obs, row)

    def result(self, row: int) -> bytes:
        """Returns the fields that a worker has written into the row of a STEP."""
        return b"".join(_views(self._result, row))

    def write_result(self, row: int, data: bytes) -> None:
        """Writes what :meth:`result` returned. Raises :class:`DamagedFrame` for another size."""
        _write(self._result, row, data)

    def decision(self, row: int, shown: bool) -> bytes:
        """Returns the actions of a row and, if they are ``shown``, the fields that a video shows."""
        return b"".join(_views(self._decision[shown], row))

    def decision_bytes(self, shown: bool) -> int:
        """Returns the size of what :meth:`decision` returns."""
        return sum(size for _, size in self._decision[shown])

    def write_decision(self, row: int, data: bytes, shown: bool) -> None:
        """Writes what :meth:`decision` returned. Raises :class:`DamagedFrame` for another size."""
        _write(self._decision[shown], row, data)


def _views(part: Part, row: int) -> list[memoryview]:
    return [whole[row * size : (row + 1) * size] for whole, size in part]


def _write(part: Part, row: int, data: bytes) -> None:
    expected, at = sum(size for _, size in part), 0
    if len(data) != expected:
        raise DamagedFrame(f"{len(data)} bytes of a row's fields, expected {expected}")
    for whole, size in part:
        whole[row * size : (row + 1) * size] = data[at : at + size]
        at += size


# -- texts -----------------------------------------------------------------------------------------------------------


def to_text(value: Any) -> bytes:
    """Writes a value as JSON."""
    return json.dumps(value).encode()


def from_text(data: bytes) -> Mapping[str, Any]:
    """Reads what :func:`to_text` wrote of a mapping. Raises :class:`DamagedFrame` for anything else."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise DamagedFrame("a text that is no JSON") from error
    if not isinstance(value, dict):
        raise DamagedFrame("a text that is no mapping")
    return value


def error_to_json(error: Exception) -> dict[str, Any]:
    """Converts an error, so that it travels whole: its class by name, and what it was made of."""
    arguments = [str(argument) for argument in error.args]
    if not isinstance(error, EmbodiedError):
        arguments = [f"{type(error).__name__}: {error}", "this is a defect of embodied on the simulator host"]
    return {"class": type(error).__name__, "arguments": arguments}


def error_from_json(data: Any) -> EmbodiedError:
    """Makes the error that :func:`error_to_json` was given; one of a class that is not ours becomes an
    :class:`EmbodiedError`."""
    try:
        kind = getattr(errors, str(data["class"]), EmbodiedError)
        arguments = [str(argument) for argument in data["arguments"]]
        if kind is EmbodiedError or not (isinstance(kind, type) and issubclass(kind, EmbodiedError)):
            return EmbodiedError(*arguments[:2])
        return kind(*arguments)
    except (KeyError, TypeError) as error:
        raise DamagedFrame("a text that is no error") from error
