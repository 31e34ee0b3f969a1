"""Reads demonstrations of any layout; finds the layout of a path."""

from __future__ import annotations

from pathlib import Path

from embodied.data import lerobot, libero_hdf5, maniskill_h5
from embodied.data.demonstrations import Demonstrations, Wanted
from embodied.errors import DatasetError


def read(path: Path, wanted: Wanted) -> Demonstrations:
    """Reads a LeRobot folder, a LIBERO ``.hdf5`` file or a folder of them, or a ManiSkill ``.h5`` file.

    Raises:
        DatasetError: the path is missing, empty or damaged, or its layout is unknown.
        SpecMismatchError: a wanted camera or state is missing.
        AssetsMissingError: the package that reads it is not installed.
    """
    if not path.exists():
        raise DatasetError(
            f"no demonstrations at {path}",
            "give data=PATH that exists, or make some: python -m embodied.tools.demos env=NAME",
        )
    if (path / "meta" / "info.json").is_file():
        found = lerobot.read(path, wanted)
    elif path.suffix == ".hdf5" or (path.is_dir() and list(path.glob("*.hdf5"))):
        found = libero_hdf5.read(path, wanted)
    elif path.suffix == ".h5":
        found = maniskill_h5.read(path, wanted)
    else:
        raise DatasetError(
            f"{path} holds no demonstrations of a known layout",
            "give a LeRobot folder (with meta/info.json), a LIBERO .hdf5 file or folder, or a .h5 file of ManiSkill",
        )
    if not found.episodes:
        raise DatasetError(f"{path} holds no episode", "make or download demonstrations; it may have been interrupted")
    return found
