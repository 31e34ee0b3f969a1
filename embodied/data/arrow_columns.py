"""Columns of Parquet files as arrays. A null or a list of another length is named by its step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data.demonstrations import package
from embodied.errors import DatasetError

RESTORE = "restore that file from where it came from"


def open_parquet(path: Path) -> Any:
    """Open a file. Raises :class:`DatasetError` if it is missing, cut off, or of another format."""
    pa, parquet = package("pyarrow"), package("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read: {error}", RESTORE) from error


def read_parquet(path: Path, columns: Sequence[str] | None = None, optional: Sequence[str] = ()) -> Any:
    """Read columns of a file as a table.

    Args:
        columns: those that must be there; None = all.
        optional: those that are read if they are there.

    Raises:
        DatasetError: the file is damaged, or lacks a column.
    """
    pa = package("pyarrow")
    with open_parquet(path) as file:
        there = file.schema_arrow.names
        if missing := [name for name in columns or () if name not in there]:
            raise DatasetError(
                f"{path} has no column '{missing[0]}', only: {', '.join(there)}",
                "restore that file from where it came from, or correct meta/info.json, which says what it has",
            )
        wanted = there if columns is None else [*columns, *(name for name in optional if name in there)]
        try:
            return file.read(columns=list(dict.fromkeys(wanted)))
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"{path} cannot be read: {error}", RESTORE) from error


def numbers_of(column: Any, shape: Sequence[int], where: str, name: str) -> np.ndarray:
    """Arrow array of L numbers or lists of numbers → [L, …].

    Args:
        shape: of a step.
        where: file and episode, for messages.
        name: of the column.

    Raises:
        DatasetError: a value is null or no number, or a step has another number of values.
    """
    types = package("pyarrow").types
    per_step = 1
    while True:
        column = getattr(column, "storage", column)  # `datasets` keeps matrices in an extension type
        if column.null_count:
            step = int(column.is_null().to_numpy(zero_copy_only=False).argmax()) // per_step
            raise DatasetError(f"{where}, step {step}: '{name}' is null or has a null in it", _REMOVE)
        if not (
            types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
        ):
            break
        per_step *= _length(column, per_step, where, name)
        column = column.flatten()
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
        raise DatasetError(
            f"{where} has {column.type} as '{name}', expected numbers",
            "write that column as numbers, or restore the file",
        )
    if per_step != math.prod(shape):
        raise DatasetError(
            f"{where} has {per_step} numbers a step as '{name}', and meta/info.json says the shape {list(shape)}",
            "correct the shape in meta/info.json, or restore the file",
        )
    return column.to_numpy(zero_copy_only=False).reshape(-1, *shape)


_REMOVE = "restore the file from where it came from, or remove the episode"


def _length(column: Any, per_step: int, where: str, name: str) -> int:
    """How many values each list has."""
    if package("pyarrow").types.is_fixed_size_list(column.type):
        return column.type.list_size
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    other = np.flatnonzero(lengths != lengths[0]) if len(lengths) else lengths
    if len(other):
        raise DatasetError(
            f"{where}, step {int(other[0]) // per_step}: '{name}' has {lengths[other[0]]} values, and {lengths[0]} in "
            "step 0",
            _REMOVE,
        )
    return int(lengths[0]) if len(lengths) else 0
