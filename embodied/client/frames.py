"""Reads frames (:mod:`.wire`): from bytes to values, whatever the bytes are. Every length is checked before anything is
allocated."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from embodied.errors import WireError

ARRAY, SCALAR, DATA, DTYPE, SHAPE = b"__ndarray__", b"__npgeneric__", b"data", b"dtype", b"shape"
DTYPES = {
    np.dtype(f"{order}{kind}{size}").str: np.dtype(f"{kind}{size}")
    for kind, sizes in (("b", (1,)), ("i", (1, 2, 4, 8)), ("u", (1, 2, 4, 8)), ("f", (2, 4, 8)))
    for size in sizes
    for order in "<>"
}
"""dtypes that may travel: their names (``<f4``, ``>f4``, ``|u1``) and what they become here."""


@dataclass(frozen=True)
class Limits:
    """Limits of what a received frame may hold. The defaults allow eight raw pictures of 1280×720."""

    max_bytes: int = 32 << 20  # size of the frame
    max_items: int = 4096  # keys, values and elements of lists; an array counts as eight, and one for each dimension
    max_depth: int = 8  # nesting of maps and lists
    max_text: int = 1 << 16  # bytes of a text
    max_dims: int = 8  # dimensions of an array


LIMITS = Limits()


def unpack(data: bytes | memoryview, limits: Limits = LIMITS) -> Any:
    """Returns the value of a frame. Lists come as lists; arrays may be read-only views of ``data``.

    Raises:
        WireError: too large, truncated, bytes left over, another type than the ones above, too deep, a key twice, or
            an array whose bytes do not fit its shape.
    """
    view = memoryview(data).toreadonly().cast("B")
    if len(view) > limits.max_bytes:
        raise WireError(f"a frame of {len(view)} bytes, at most {limits.max_bytes} are read", "send smaller pictures")
    reader = _Reader(view, limits)
    value = reader.value(limits.max_depth)
    if reader.at != len(view):
        reader.refuse(f"{len(view) - reader.at} bytes follow the value")
    return value


def read_array(name: Any, shape: Any, data: Any, limits: Limits = LIMITS) -> np.ndarray:
    """Returns the array that its dtype's name, its shape and its bytes describe: in the byte order of this machine,
    perhaps a read-only view of ``data``.

    Raises:
        WireError: another dtype than those of :data:`DTYPES`, or bytes that do not fit the shape.
    """
    dtype, most = dtype_of(name), limits.max_dims
    if not isinstance(shape, list) or len(shape) > most or not all(type(size) is int and size >= 0 for size in shape):
        raise _bad_array(f"an array's shape must be a list of at most {most} whole numbers, got {shape!r:.60}")
    if not isinstance(data, bytes | memoryview):
        raise _bad_array(f"an array's data must be bytes, got {type(data).__name__}")
    count = math.prod(shape)
    if count * dtype.itemsize != len(data) or (count or math.prod(n or 1 for n in shape)) > limits.max_bytes:
        raise _bad_array(f"an array of shape {shape} and dtype {dtype} does not have {len(data)} bytes")
    if dtype.kind == "b":  # a byte that is neither 0 nor 1 would be a bool that is neither
        return np.not_equal(np.frombuffer(data, np.uint8), 0).reshape(shape)
    if name.startswith(">"):
        return np.frombuffer(data, dtype.newbyteorder(">")).astype(dtype).reshape(shape)
    array = np.frombuffer(data, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def dtype_of(name: Any) -> np.dtype:
    """Returns the dtype of that name, in the byte order of this machine. Raises WireError if it may not travel."""
    if not isinstance(name, str) or name not in DTYPES:
        raise _bad_array(f"dtype {name!r:.40} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _bad_array(what: str) -> WireError:
    return WireError(what, "send arrays in C order of bools, whole numbers or floating-point numbers")


class _Reader:
    """Reads one value of msgpack. Every length is checked before anything is allocated."""

    def __init__(self, view: memoryview, limits: Limits) -> None:
        self._view, self._limits, self._size = view, limits, len(view)
        self._items = limits.max_items
        self.at = 0

    def value(self, depth: int) -> Any:
        """The value that begins here, with at most ``depth`` levels of maps and lists."""
        if self.at >= self._size:
            self.refuse("a value is announced and nothing is left")
        first = self._view[self.at]
        self.at += 1
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first in _PLAIN:
            return _PLAIN[first]
        if first in _NUMBERS:
            return self._number(_NUMBERS[first])
        if 0xA0 <= first < 0xC0:
            return self._text(first & 0x1F)
        if first < 0xA0:
            return (self._map if first < 0x90 else self._list)(first & 0x0F, depth)
        return self._long(first, depth)

    def refuse(self, what: str) -> NoReturn:
        raise WireError(
            f"byte {self.at} of a frame of {len(self._view)}: {what}",
            "send msgpack maps with arrays in openpi's encoding (embodied.client.wire.pack)",
        )

    def _long(self, first: int, depth: int) -> Any:
        """The value whose length stands in a number behind its first byte."""
        if first not in _LENGTHS:
            self.refuse(f"a value of type 0x{first:02x} is not read")
        name, count = _LENGTHS[first]
        length = self._number(count)
        if name == "bytes":
            return bytes(self._take(length))
        if name == "text":
            return self._text(length)
        return (self._map if name == "map" else self._list)(length, depth)

    def _number(self, form: struct.Struct) -> Any:
        at, self.at = self.at, self.at + form.size
        if self.at > self._size:
            self.refuse(f"a number of {form.size} bytes is announced and {self._size - at} are left")
        return form.unpack_from(self._view, at)[0]

    def _take(self, count: int) -> memoryview:
        if count > self._size - self.at:
            self.refuse(f"{count} bytes are announced and {self._size - self.at} are left")
        self.at += count
        return self._view[self.at - count : self.at]

    def _text(self, length: int) -> str:
        if length > self._limits.max_text:
            self.refuse(f"a text of {length} bytes, at most {self._limits.max_text} are read")
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            self.refuse("a text that is no UTF-8")

    def _count(self, items: int, depth: int) -> None:
        if depth == 0:
            self.refuse(f"nested more than {self._limits.max_depth} deep")
        self._items -= items
        if self._items < 0:
            self.refuse(f"more than {self._limits.max_items} values")

    def _list(self, length: int, depth: int) -> list[Any]:
        self._count(length, depth)
        return [self.value(depth - 1) for _ in range(length)]

    def _map(self, length: int, depth: int) -> Any:
        self._count(2 * length, depth)
        if length == 4 and (array := self._packed_array(depth)) is not None:
            return array
        found: dict[Any, Any] = {}
        for _ in range(length):
            key = self._key()
            if key in found:
                self.refuse(f"the key {key!r} stands twice in a map")
            found[key] = self._raw() if key == DATA else self.value(depth - 1)
        marked = [isinstance(key, bytes) for key in found]
        if not any(marked):
            return found
        if found.keys() == {ARRAY, DATA, DTYPE, SHAPE} and found[ARRAY] is True:
            return self._array(found)
        if found.keys() == {SCALAR, DATA, DTYPE} and found[SCALAR] is True:
            return self._scalar(found)
        self.refuse(f"a map with the keys {sorted(map(repr, found))} is no array; other keys must be text")

    def _packed_array(self, depth: int) -> np.ndarray | None:
        """An array of numbers as :func:`.wire.pack` and openpi write it, read in a fraction of the time. None if these
        bytes are anything else; then nothing of them is read."""
        data = _ARRAY.match(self._view, self.at)
        if data is None or depth < 2:
            return None
        begin = data.end()
        end = begin + int.from_bytes(data[data.lastindex or 1], "big")
        rest = _DTYPE_AND_SHAPE.match(self._view, end)
        found = None if rest is None else _described(bytes(rest[1]), bytes(rest[2]))
        if rest is None or found is None:
            return None
        dtype, shape, count = found
        few = len(shape) <= self._limits.max_dims and self._limits.max_text >= len(rest[1])
        if not few or count * dtype.itemsize != end - begin:
            return None
        self.at = rest.end()
        self._count(len(shape), depth - 1)
        array = np.frombuffer(self._view, dtype, count, begin)
        return (array if array.flags.aligned else array.copy()).reshape(shape)

    def _key(self) -> str | bytes:
        """A key: text, or one of the few in bin that mark arrays."""
        first = self._view[self.at] if self.at < self._size else 0
        if 0xA0 <= first < 0xC0:
            self.at += 1
            return self._text(first & 0x1F)
        key = self.value(0)
        if isinstance(key, str) or (isinstance(key, bytes) and key in (ARRAY, SCALAR, DATA, DTYPE, SHAPE)):
            return key
        self.refuse(f"a map has a key of type {type(key).__name__}, expected text")

    def _raw(self) -> Any:
        """The ``data`` of an array, without a copy; that of a scalar."""
        first = self._view[self.at] if self.at < len(self._view) else 0
        if first not in _LENGTHS or _LENGTHS[first][0] != "bytes":
            return self.value(0)
        self.at += 1
        return self._take(self._number(_LENGTHS[first][1]))

    def _array(self, found: Mapping[bytes, Any]) -> np.ndarray:
        try:
            return read_array(found[DTYPE], found[SHAPE], found[DATA], self._limits)
        except WireError as error:
            self.refuse(error.message)

    def _scalar(self, found: Mapping[bytes, Any]) -> np.generic:
        try:
            dtype, data = dtype_of(found[DTYPE]), found[DATA]
        except WireError as error:
            self.refuse(error.message)
        fits = isinstance(data, bool | int | float)
        if fits and dtype.kind in "iu":
            fits = isinstance(data, int) and np.iinfo(dtype).min <= data <= np.iinfo(dtype).max
        if not fits:
            self.refuse(f"a scalar of dtype {dtype} cannot be {data!r:.40}")
        with np.errstate(over="ignore"):  # a number beyond those of the dtype becomes infinite
            scalar: np.generic = dtype.type(data)
        return scalar


_PLAIN: Mapping[int, Any] = {0xC0: None, 0xC2: False, 0xC3: True}
_BYTE, _SHORT, _WORD = (struct.Struct(form) for form in (">B", ">H", ">I"))
_NUMBERS = {0xCA + number: struct.Struct(f">{form}") for number, form in enumerate("fdBHIQbhiq")}
_LENGTHS = {
    0xC4: ("bytes", _BYTE), 0xC5: ("bytes", _SHORT), 0xC6: ("bytes", _WORD),
    0xD9: ("text", _BYTE), 0xDA: ("text", _SHORT), 0xDB: ("text", _WORD),
    0xDC: ("list", _SHORT), 0xDD: ("list", _WORD), 0xDE: ("map", _SHORT), 0xDF: ("map", _WORD),
}  # fmt: skip
# The keys and values of an array up to the bytes of its data, without the map's first byte; and what follows them, with
# as many sizes as the shape's first byte says: nothing behind the array is looked at.
_ARRAY = re.compile(rb"\xc4\x0b__ndarray__\xc3\xc4\x04data(?:\xc4(.)|\xc5(..)|\xc6(....))", re.DOTALL)
_SIZE = rb"(?:[\0-\x7f]|\xcc.|\xcd..|\xce....)"
_SHAPES = b"|".join(rb"\x%x%s{%d}" % (0x90 + sizes, _SIZE, sizes) for sizes in range(16))
_DTYPE_AND_SHAPE = re.compile(rb"\xc4\x05dtype\xa3(...)\xc4\x05shape(%s)" % _SHAPES, re.DOTALL)


@lru_cache(1024)
def _described(name: bytes, packed: bytes) -> tuple[np.dtype, list[int], int] | None:
    """dtype, shape and number of values of an array; None if the bytes cannot be taken as they are."""
    dtype = DTYPES.get(name.decode("latin-1"))
    reader = _Reader(memoryview(packed), LIMITS)
    try:
        shape = reader.value(1)
    except WireError:
        return None
    if dtype is None or name.startswith(b">") or dtype.kind == "b" or reader.at != len(packed):
        return None
    return (dtype, shape, math.prod(shape)) if all(shape) else None
