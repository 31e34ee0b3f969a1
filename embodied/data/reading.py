"""Reads demonstrations of any layout: finds the layout of a path, and checks every episode as it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from embodied.data.checking.values import check_alike, check_values
from embodied.data.demonstrations import (
    Demonstration,
    Demonstrations,
    DemonstrationStream,
    FieldSelection,
    PendingEpisode,
)
from embodied.data.hdf5 import hdf5, libero, maniskill
from embodied.data.lerobot import reading
from embodied.errors import DatasetError, EmbodiedError

Refused = Callable[[EmbodiedError], None]
Passed = Callable[[], None]
_ODD = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, OSError, RuntimeError, MemoryError)


def read(
    path: Path, selection: FieldSelection, refused: Refused | None = None, passed: Passed = lambda: None
) -> Demonstrations:
    """Reads a LeRobot folder, a ``.hdf5`` file of LIBERO or robomimic or a folder of them, or a ManiSkill ``.h5`` file.

    Args:
        refused: called with the error of an episode that is then left out; None = the first one is raised.
        passed: called after each episode.

    Raises:
        DatasetError: the path is missing, empty or damaged, or its layout is unknown.
        SpecMismatchError: a wanted camera or state is missing.
        AssetsMissingError: the package that reads it is not installed.
    """
    opened = open_set(path, selection)
    episodes: list[Demonstration] = []
    for one in opened.episodes:
        try:
            episode = _checked(one)
            check_alike(episodes[0] if episodes else episode, episode)
        except EmbodiedError as error:
            if refused is None:
                raise
            refused(error)
        else:
            episodes.append(episode)
        passed()
    if not episodes and refused is None:
        raise DatasetError(f"{path} holds no episode", "make or download demonstrations; it may have been interrupted")
    return Demonstrations(path, episodes, opened.made_with, opened.fps, opened.columns)


def open_set(path: Path, selection: FieldSelection) -> DemonstrationStream:
    """Opens the data set at a path, whatever its layout. Raises what :func:`read` raises."""
    with _named(str(path)):
        return _open(path, selection)


def _open(path: Path, wanted: FieldSelection) -> DemonstrationStream:
    if not path.exists():
        raise DatasetError(
            f"no demonstrations at {path}"
            + (f": it is a link to {path.readlink()}, which is not there" if path.is_symlink() else ""),
            f"give {wanted.one_path} that exists, or make some: python -m embodied.tools.demos env=NAME",
        )
    if _is_lerobot(path):
        return reading.open_set(path, wanted)
    if _is_hdf5(path):
        return libero.open_set(path, wanted)
    if path.suffix.lower() == ".h5":
        return maniskill.open_set(path, wanted)
    remedy = "give a LeRobot folder (with meta/info.json), a LIBERO .hdf5 file or folder, or a .h5 file of ManiSkill"
    if near := _near(path):
        remedy = f"give {' or '.join(map(str, near[:3]))}; several are given as {wanted.key}=[A,B]"
    raise DatasetError(f"{path} holds no demonstrations of a known layout", remedy)


def _is_lerobot(path: Path) -> bool:
    return (path / "meta" / "info.json").is_file()


def _is_hdf5(path: Path) -> bool:
    """Whether it is in robomimic's layout, by its name; a file .h5 by its group: ManiSkill's have that ending too."""
    if path.is_dir():
        return bool(list(path.glob("*.hdf5")))
    if path.suffix.lower() in (".hdf5", ".hdf"):
        return True
    if path.suffix.lower() != ".h5" or path.with_suffix(".json").exists():
        return False
    with hdf5.open_hdf5(path, "demonstrations") as file:
        return hdf5.group_of(file, "data") is not None


def _near(path: Path) -> list[Path]:
    """Data sets that hold the path, or lie in it."""
    inner = [one for form in ("*", "*/*") for one in sorted(path.glob(form)) if one.is_dir()] if path.is_dir() else []
    around = [one for one in path.absolute().parents[:3] if _is_lerobot(one)]
    return around + [one for one in inner if _is_lerobot(one) or _is_hdf5(one)]


def _checked(one: PendingEpisode) -> Demonstration:
    """Reads an episode and checks it."""
    with _named(one.where):
        episode = one.read()
    check_values(episode)
    return episode


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Makes what a file's library raises an error that says where it was met."""
    try:
        yield
    except EmbodiedError:
        raise
    except _ODD as error:
        said = " ".join(str(error).split())
        raise DatasetError(
            f"{where} cannot be read: {type(error).__name__}: {said}",
            "restore the file from where it came from, or remove the episode",
        ) from error
