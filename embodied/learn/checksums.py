"""Checksums of demonstrations, by which a run that goes on knows those that it has learnt from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.data.checking.frames import Frames
from embodied.data.demonstrations import Demonstration
from embodied.data.texts.text import DemonstratedAnswer
from embodied.errors import CheckpointError
from embodied.parallel.group import Group

SUMMED_BYTES = 1 << 32
"""Pictures of so many bytes are read for a checksum; of more, every n-th control step's."""
SUMMED_STEPS = 1024
"""Control steps, spread over all, whose pictures are read for a checksum of what is cloned; more take seconds."""
KEYS = {"numbers": "demonstrations", "pictures": "demonstrated_pictures"}  # in a checkpoint
SAID = {"numbers": "actions, observations or instructions", "pictures": "pictures"}
AGAIN = "restore them, or start anew under another runner.experiment_name"


@dataclass(frozen=True)
class Checksums:
    """Checksums of demonstrations: of this rank's, or of all if each rank has all."""

    numbers: int  # of what was done, observed and told; of pictures only whether there are any
    pictures: int  # of picture files as they are stored, or of pixels where they are stored as such; 0 = none is read

    def state_dict(self, group: Group) -> dict[str, Any]:
        """Returns what a checkpoint keeps, of all ranks. A collective."""
        return {key: group.gather(getattr(self, name)) for name, key in KEYS.items()}

    def check(self, state: Mapping[str, Any], rank: int) -> None:
        """Compares with a checkpoint's, of which those of earlier versions have none of pictures.

        Raises:
            CheckpointError: the run has learnt from others.
        """
        before = {name: state.get(key, []) for name, key in KEYS.items()}
        if not before["numbers"]:
            raise CheckpointError(
                "the run has learnt from no algorithm.replay.demonstrations so far, and there are some now",
                "leave them out, or start anew under another runner.experiment_name",
            )
        self._compare({name: sums[rank] for name, sums in before.items() if sums}, "algorithm.replay.demonstrations")

    @property
    def of_all(self) -> dict[str, Any]:
        """What a checkpoint keeps if each rank has all demonstrations."""
        return {key: getattr(self, name) for name, key in KEYS.items()}

    def check_all(self, state: Mapping[str, Any]) -> None:
        """Compares with a checkpoint's :attr:`of_all`; those of earlier versions have none.

        Raises:
            CheckpointError: the run has learnt from others.
        """
        self._compare({name: state[key] for name, key in KEYS.items() if key in state}, "the demonstrations (data)")

    def _compare(self, before: Mapping[str, int], what: str) -> None:
        if changed := [SAID[name] for name, found in before.items() if found != getattr(self, name)]:
            raise CheckpointError(
                f"{what} are others than those that the run has learnt from: their {' and their '.join(changed)} have "
                "changed",
                AGAIN,
            )


def checksums_of(episodes: Sequence[Demonstration], pictures: bool) -> Checksums:
    """Computes the checksums of episodes.

    Args:
        pictures: whether pictures are read by the policy or its base.

    Raises:
        DatasetError: a picture is damaged.
    """
    return Checksums(_of_numbers(episodes), _of_pictures(episodes, SUMMED_BYTES) if pictures else 0)


def checksums_of_cloned(episodes: Sequence[Demonstration | DemonstratedAnswer], pictures: bool) -> Checksums:
    """Computes the checksums of episodes or answers, which may be very many: few of their pictures are read.

    Args:
        pictures: whether pictures are read by the policy.

    Raises:
        DatasetError: a picture is damaged.
    """
    shown = [episode for episode in episodes if isinstance(episode, Demonstration)]
    answers = [answer for answer in episodes if isinstance(answer, DemonstratedAnswer)]
    numbers = _of_numbers(shown)
    for answer in answers:
        told = f"{len(answer.instruction)} {answer.instruction}{answer.response}"
        numbers = zlib.crc32(told.encode(errors="replace"), numbers)
    if not pictures:
        return Checksums(numbers, 0)
    ends, found = np.cumsum([len(episode) for episode in shown]), 0
    for place in _spread(int(ends[-1]) if shown else 0):
        number = int(np.searchsorted(ends, place, side="right"))
        found = _sum_of_step(shown[number].pictures, place - int(ends[number]) + len(shown[number]), found)
    for number in _spread(len(answers)):
        for picture in answers[number].pictures:
            found = zlib.crc32(_stored(picture), found)
    return Checksums(numbers, found)


def _spread(total: int) -> list[int]:
    """Up to :data:`SUMMED_STEPS` of so many places."""
    return [*range(0, total, max(1, -(-total // SUMMED_STEPS)))]


def _stored(picture: Any) -> bytes:
    """A picture in a row: its bytes, or the path that stands there."""
    if isinstance(picture, Mapping):
        picture = picture.get("bytes") or picture.get("path")
    if isinstance(picture, bytes):
        return picture
    return picture.tobytes() if hasattr(picture, "tobytes") else str(picture).encode(errors="replace")


def _sum_of_step(read: Callable[[int], np.ndarray] | None, t: int, before: int) -> int:
    found = before
    if read is not None:
        for stored in read.stored(t) if isinstance(read, Frames) else [read(t).tobytes()]:
            found = zlib.crc32(stored, found)
    return found


def _of_numbers(episodes: Sequence[Demonstration]) -> int:
    found = 0
    for episode in episodes:
        for array in (episode.actions, *(episode.fields[name] for name in sorted(episode.fields))):
            found = zlib.crc32(np.ascontiguousarray(array).tobytes(), found)
        found = zlib.crc32(f"{len(episode)} {episode.instruction}".encode(errors="replace"), found)
    return found


def _of_pictures(episodes: Sequence[Demonstration], most_bytes: int) -> int:
    seen = [(episode, episode.pictures) for episode in episodes if episode.pictures is not None and len(episode)]
    total = sum(read(0).nbytes * len(episode) for episode, read in seen)
    every, found = max(1, -(-total // most_bytes)), 0
    for episode, read in seen:
        for t in range(0, len(episode), every):
            found = _sum_of_step(read, t, found)
    return found
