"""Reads headers of safetensors files without trusting them: nothing is allocated before its size fits the file.

8 bytes: length of the header │ header, a JSON object │ numbers of all tensors, without gaps
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from embodied.lib.files import check_content, reading

BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Number formats of safetensors, with the bits of a number."""
MOST_HEADER_BYTES = 100_000_000  # safetensors itself accepts no more
METADATA = "__metadata__"


@dataclass(frozen=True)
class Entry:
    """A tensor's entry in a header of safetensors: dtype, shape and place in the file."""

    dtype: str  # a key of BITS
    shape: tuple[int, ...]
    begin: int  # its bytes, counted from the end of the header
    end: int


def read_header(file: Path) -> dict[str, Entry]:
    """Reads the header of a safetensors file: its tensors by name.

    Raises:
        CheckpointError: the file may not be read.
        DamagedCheckpointError: it is no such file, or its header does not fit its size.
    """
    check_content(file)
    with reading(file, "it is no safetensors file"):
        size = file.stat().st_size
        with file.open("rb") as opened:
            length, header = _parsed(opened, size)
        entries = {name: _entry(name, said) for name, said in header.items() if name != METADATA}
        _check_places(entries, size - 8 - length)
    return entries


def _parsed(opened: BinaryIO, size: int) -> tuple[int, dict[str, Any]]:
    """Bytes of the header, and what it says."""
    first = opened.read(8)
    if len(first) < 8:
        raise ValueError(f"it has {size} bytes")
    (length,) = struct.unpack("<Q", first)
    if length > size - 8:
        raise ValueError(f"its header would have {length} bytes, and the file has {size}")
    if length > MOST_HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes, expected at most {MOST_HEADER_BYTES}")
    values = json.loads(opened.read(length), object_pairs_hook=_once)
    if not isinstance(values, dict):
        raise TypeError(f"its header is a {type(values).__name__}")
    return length, values


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in its header")
    return found


def _entry(name: str, said: Any) -> Entry:
    if not isinstance(said, Mapping) or {"dtype", "shape", "data_offsets"} - said.keys():
        raise ValueError(f"its header says {str(said)[:80]} of {name}, expected dtype, shape and data_offsets")
    dtype, shape, places = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{name} has the number format {str(dtype)[:40]!r}, known are {', '.join(BITS)}")
    if not (_counts(shape) and _counts(places) and len(places) == 2):
        raise ValueError(f"{name} has the shape {str(shape)[:80]} at {str(places)[:80]}, expected whole numbers")
    needed = math.ceil(math.prod(shape) * BITS[dtype] / 8) if math.prod(shape) < 2**60 else -1
    if places[1] - places[0] != needed:
        raise ValueError(f"{name} has the shape {shape} in {dtype}, and the bytes {places[0]} to {places[1]}")
    return Entry(dtype, tuple(shape), *places)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_places(entries: Mapping[str, Entry], size: int) -> None:
    """The tensors lie one behind the other, and the last ends where the file does."""
    end, before = 0, "the header"
    for name, entry in sorted(entries.items(), key=lambda one: (one[1].begin, one[1].end)):
        if entry.begin != end:
            raise ValueError(f"{name} begins at byte {entry.begin}, and {before} ends at byte {end}")
        end, before = entry.end, name
    if end != size:
        raise ValueError(f"its tensors have {end} bytes, and behind its header it has {size}")
