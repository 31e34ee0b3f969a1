"""Checks the values of an episode as it is read, so that a NaN or a missing step is found before training."""

from __future__ import annotations

import numpy as np

from embodied import instructions
from embodied.data.checking.frames import Frames
from embodied.data.demonstrations import Demonstration
from embodied.errors import DatasetError

RESTORE = "restore the file from where it came from, or remove the episode"


def check_values(episode: Demonstration) -> None:
    """Check lengths, types and finiteness of an episode.

    Raises:
        DatasetError: names file, episode and, where there is one, the first step that is wrong.
    """
    where, length = episode.where, len(episode)
    if not length:
        raise DatasetError(f"{where} has no step", "record it again, or remove it from the data set")
    _check_actions(episode)
    if not episode.instruction.strip():
        raise DatasetError(
            f"{where} has no instruction", "set data.instruction to the instruction of the task that it shows"
        )
    for name, values in episode.fields.items():
        if len(values) != length:
            raise DatasetError(f"{where} has {len(values)} steps of '{name}', and {length} actions", RESTORE)
        _check_finite(values, where, name)
    if isinstance(episode.pictures, Frames):
        episode.pictures.check_counts(length)


def _check_actions(episode: Demonstration) -> None:
    actions = episode.actions
    if actions.ndim not in (1, 2) or not actions[0].size:
        raise DatasetError(
            f"{episode.where} has actions of shape {list(actions.shape[1:])}, expected a list of numbers a step",
            "choose the column of the actions: data.action_key=COLUMN",
        )
    _check_finite(actions, episode.where, "action")


def _check_finite(values: np.ndarray, where: str, name: str) -> None:
    if not np.issubdtype(values.dtype, np.floating) or np.isfinite(values).all():
        return
    step, *place = np.argwhere(~np.isfinite(values))[0].tolist()
    number = f"number {place[0]} of " if place else ""
    raise DatasetError(
        f"{where}, step {step}: {number}'{name}' is {values[step][tuple(place)]}, expected a finite number", RESTORE
    )


def check_alike(first: Demonstration, episode: Demonstration) -> None:
    """Raises :class:`DatasetError` if two episodes of one data set differ in their dimensions."""
    for name, old, new in [
        ("action", _kind(first.actions), _kind(episode.actions)),
        *((name, _kind(first.fields.get(name)), _kind(episode.fields.get(name))) for name in _fields(first, episode)),
    ]:
        if old != new:
            raise DatasetError(
                f"{episode.where} has {new} as '{name}', and {first.where} has {old}",
                "give each data set a path of its own, or remove the episodes that differ",
            )


def _fields(*episodes: Demonstration) -> list[str]:
    names = dict.fromkeys(name for episode in episodes for name in episode.fields)
    return [name for name in names if name != instructions.FIELD]  # texts differ in length


def _kind(values: np.ndarray | None) -> str:
    return "nothing" if values is None else f"{values.dtype} {list(values.shape[1:])}"
