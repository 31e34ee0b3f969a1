"""Reads the files of torch.distributed.checkpoint without trusting them.

torch's own reader unpickles ``.metadata``, and any code with it; it opens whatever paths stand there, and what is to be
read is allocated before it is known to exist. Here that file may name the classes of such a checkpoint and nothing
else, its paths are files of the folder, and what it says must fit the bytes that are there. The tensors themselves
torch reads with ``weights_only``.
"""

from __future__ import annotations

import io
import math
import pathlib
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.filesystem as files
import torch.distributed.checkpoint.metadata as parts
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from embodied.errors import DamagedCheckpointError
from embodied.lib.files import inside

METADATA = ".metadata"
MOST_METADATA_BYTES = 1 << 30
ALLOWED: dict[str, tuple[Any, tuple[str, ...]]] = {
    parts.__name__: (
        parts,
        (
            *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
            *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        ),
    ),
    files.__name__: (files, ("_StorageInfo",)),
    "torch": (torch, ("Size",)),
    "torch.serialization": (torch.serialization, ("_get_layout",)),
}
"""Module → names in it that the file may use, beside torch's dtypes and paths."""


class _Allowed(pickle.Unpickler):
    """Takes the listed classes and no others, so nothing of the file is run."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ALLOWED and name in ALLOWED[module][1]:
            return getattr(ALLOWED[module][0], name)
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if module in ("pathlib", "pathlib._local") and name.removeprefix("Pure") in ("PosixPath", "WindowsPath"):
            return pathlib.PurePath  # names where it was written; nothing is opened there
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a checkpoint")


class Reader(files.FileSystemReader):
    """Reader of a checkpoint's tensors for torch's distributed checkpointing (DCP).

    Raises (from :meth:`read_metadata`):
        DamagedCheckpointError: the file is damaged, or names code, paths or sizes that no checkpoint has.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads DCP's metadata. Raises DamagedCheckpointError if it is damaged."""
        if self._metadata is None:
            self._metadata = _checked(self._folder, _parsed(inside(self._folder, METADATA)))
        self._metadata.storage_meta = parts.StorageMeta(load_id=self.load_id)
        return self._metadata


def _parsed(file: Path) -> Metadata:
    try:
        if file.stat().st_size > MOST_METADATA_BYTES:
            raise ValueError(f"it has {file.stat().st_size} bytes")
        metadata = _Allowed(io.BytesIO(file.read_bytes())).load()
    except Exception as error:  # a damaged pickle may raise anything, depending on where it is damaged
        raise _damaged(file, f"{type(error).__name__}: {error}") from error
    if not isinstance(metadata, Metadata):
        raise _damaged(file, f"it holds a {type(metadata).__name__}")
    return metadata


def _checked(folder: Path, metadata: Metadata) -> Metadata:
    """Compare what the file says with the bytes that are there, before any of it is allocated or opened."""
    file = folder / METADATA
    try:
        stored = sum(_bytes(folder, info) for info in metadata.storage_data.values())
        claimed = sum(_claimed(facts) for facts in metadata.state_dict_metadata.values())
    except (AttributeError, ArithmeticError, TypeError, ValueError) as error:
        raise _damaged(file, str(error)) from error
    if claimed > stored:
        raise _damaged(file, f"its tensors have {claimed} bytes and the files {stored}")
    return metadata


def _bytes(folder: Path, info: Any) -> int:
    """Bytes of one entry, which must lie in a file of the folder."""
    path = inside(folder, info.relative_path)
    first, length = _count(info.offset), _count(info.length)
    size = path.stat().st_size if path.is_file() else -1
    if first + length > size:
        raise ValueError(f"an entry ends at byte {first + length} of {path.name}, which has {size}")
    if info.transform_descriptors:
        raise ValueError(f"an entry is transformed by {info.transform_descriptors}")
    return length


def _claimed(facts: Any) -> int:
    """Bytes of one tensor, whose parts must lie within it."""
    if not isinstance(facts, TensorStorageMetadata):
        return 0
    shape = [_count(size) for size in facts.size]
    if not isinstance(facts.properties.dtype, torch.dtype):
        raise TypeError(f"a tensor has the type {facts.properties.dtype!r}")
    for chunk in facts.chunks:
        ends = [_count(a) + _count(b) for a, b in zip(chunk.offsets, chunk.sizes, strict=True)]
        if len(ends) != len(shape) or any(end > size for end, size in zip(ends, shape, strict=True)):
            raise ValueError(f"a part of a tensor ends at {ends}, beyond its shape {shape}")
    return math.prod(shape) * facts.properties.dtype.itemsize


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"got {value!r}, expected a whole number of 0 or more")
    return value


def _damaged(file: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"{file} is damaged: {reason}", "give another checkpoint, or copy it again")
