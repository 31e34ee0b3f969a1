"""Checksums of demonstrations, by which a run that goes on knows those that it has learnt from."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.data.checking.frames import Frames
from embodied.data.demonstrations import Demonstration
from embodied.errors import CheckpointError
from embodied.parallel.group import Group

SUMMED_BYTES = 1 << 32
"""Pictures of so many bytes are read for a checksum; of more, every n-th control step's."""
KEYS = {"numbers": "demonstrations", "pictures": "demonstrated_pictures"}  # in a checkpoint
SAID = {"numbers": "actions, observations or instructions", "pictures": "pictures"}


@dataclass(frozen=True)
class Checksums:
    """Checksums of this rank's demonstrations."""

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
        changed = [SAID[name] for name, sums in before.items() if sums and sums[rank] != getattr(self, name)]
        if changed:
            raise CheckpointError(
                f"algorithm.replay.demonstrations are others than those that the run has learnt from: their "
                f"{' and their '.join(changed)} have changed",
                "restore them, or start anew under another runner.experiment_name",
            )


def checksums_of(episodes: Sequence[Demonstration], pictures: bool) -> Checksums:
    """Computes the checksums of episodes.

    Args:
        pictures: whether pictures are read by the policy or its base.

    Raises:
        DatasetError: a picture is damaged.
    """
    return Checksums(_of_numbers(episodes), _of_pictures(episodes, SUMMED_BYTES) if pictures else 0)


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
            for stored in read.stored(t) if isinstance(read, Frames) else [read(t).tobytes()]:
                found = zlib.crc32(stored, found)
    return found
