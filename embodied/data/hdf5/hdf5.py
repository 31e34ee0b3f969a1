"""HDF5 files of other programs: opened, and their arrays and texts read with what is missing named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data.checking.frames import REDO, Camera
from embodied.data.demonstrations import package
from embodied.errors import DatasetError

RESTORE = "restore the file from where it came from, or remove the episode"


def open_hdf5(path: Path, content: str) -> Any:
    """Opens an HDF5 file of demonstrations for reading.

    Args:
        content: it should hold, for messages: "LIBERO demonstrations".

    Raises:
        DatasetError: it is no HDF5 file, is cut off, or another program writes it.
    """
    h5py = package("h5py")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        remedy = "remove or replace it"
        if not path.exists():
            remedy = "restore what the link leads to, or remove it"
        elif "lock" in str(error):
            remedy = "wait for the program that writes it, or end it"
        elif path.is_file() and not h5py.is_hdf5(path):
            remedy = "remove or replace it: it does not begin as an HDF5 file does"
        elif "truncated" in str(error):
            remedy = "copy or download it again: it is not whole"
        raise DatasetError(f"{path} is no file of {content}: {error}", remedy) from error


def group_of(parent: Any, name: str) -> Any:
    """Returns the HDF5 group called ``name``; None if there is none, or a link that leads nowhere."""
    found = parent.get(name)
    return found if isinstance(found, package("h5py").Group) else None


def is_array(parent: Any, name: str) -> bool:
    """Returns whether an HDF5 array has this name, which may lead through groups: "agent/qpos"."""
    return isinstance(parent.get(name), package("h5py").Dataset)


def arrays(group: Any, prefix: str = "") -> list[str]:
    """Lists the names of all HDF5 arrays in a group and in the groups below it."""
    found: list[str] = []
    for name in group:
        inner = group_of(group, name)
        if inner is not None:
            found += arrays(inner, f"{prefix}{name}/")
        elif is_array(group, name):
            found.append(prefix + name)
    return found


def numbers(parent: Any, name: str, where: str) -> np.ndarray:
    """Reads an HDF5 array of numbers as float32 [L, …]. Raises :class:`DatasetError` if it holds something else."""
    array = parent[name]
    if array.dtype.kind not in "fiub" or not array.shape:
        raise DatasetError(
            f"{where} has {array.dtype} {list(array.shape)} as '{name}', expected numbers for each step", RESTORE
        )
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
            return np.asarray(array).astype(np.float32)
    except (OSError, RuntimeError) as error:
        raise DatasetError(f"{where}: '{name}' cannot be read: {error}", RESTORE) from error


def flat(parts: Sequence[np.ndarray], names: Sequence[str], where: str) -> np.ndarray:
    """Arrays [L, …] side by side: [L, S]. Raises :class:`DatasetError` if they differ in length."""
    for part, name in zip(parts, names, strict=True):
        if len(part) != len(parts[0]):
            raise DatasetError(
                f"{where} has {len(parts[0])} steps of '{names[0]}', and {len(part)} of '{name}'", RESTORE
            )
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def camera(array: Any, name: str, where: str, count: int, turned: bool = False) -> Camera:
    """Makes the lazy reader of an HDF5 array of pictures: each is decoded when it is asked for, turned by 180° if
    ``turned``.

    Args:
        count: of pictures that belong to actions.
        turned: by 180°, so that they are turned back.

    Raises:
        DatasetError: they are no 8-bit RGB.
    """
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise DatasetError(
            f"{where} has {array.dtype} {list(array.shape)} as '{name}', expected pictures uint8 [L, height, width, 3]",
            REDO,
        )
    height, width = array.shape[1:3]
    return Camera(name, count, (int(height), int(width)), partial(_read, array, turned))


def _read(array: Any, turned: bool, t: int) -> np.ndarray:
    picture = array[t]
    return picture[::-1, ::-1] if turned else picture


def text(attribute: Any) -> str | None:
    """Reads an HDF5 attribute that holds a text, however it is stored; None if it holds none."""
    if isinstance(attribute, np.ndarray) and attribute.size == 1:
        attribute = attribute.item()
    if isinstance(attribute, bytes):
        return attribute.decode(errors="replace")
    return attribute if isinstance(attribute, str) else None
