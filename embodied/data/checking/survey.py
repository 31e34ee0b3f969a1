"""What a whole set of demonstrations looks like: the facts that no single episode shows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from embodied.data.demonstrations import Demonstration

FEW = 3  # values of a dimension that is like a switch: open, closed, and nothing


def actions_of(episodes: Sequence[Demonstration]) -> np.ndarray:
    """Actions of all steps: [N, A]; [N, 1] if each is one whole number."""
    whole = np.concatenate([episode.actions for episode in episodes])
    return whole.reshape(len(whole), -1)


def constant_dimensions(actions: np.ndarray) -> dict[int, float]:
    """Dimensions of ``actions`` [N, A] that never change, with their value."""
    same = (actions == actions[:1]).all(axis=0)
    return {int(place): float(actions[0, place]) for place in np.flatnonzero(same)}


def switches(actions: np.ndarray) -> dict[int, list[float]]:
    """Dimensions of ``actions`` [N, A] that take two or three values, as a gripper does, with these values."""
    found = {}
    for place in range(actions.shape[1]):
        values = np.unique(actions[:, place])
        if 1 < len(values) <= FEW < len(actions):
            found[place] = values.tolist()
    return found


def equal_episodes(episodes: Sequence[Demonstration]) -> list[tuple[str, str]]:
    """Pairs of episodes with the same instruction, actions and observation fields: ``(the first, its copy)``."""
    seen: dict[bytes, str] = {}
    pairs = []
    for episode in episodes:
        digest = _digest(episode)
        if digest in seen:
            pairs.append((seen[digest], episode.where))
        seen.setdefault(digest, episode.where)
    return pairs


def _digest(episode: Demonstration) -> bytes:
    whole = hashlib.sha256(episode.instruction.encode(errors="replace"))
    whole.update(np.ascontiguousarray(episode.actions).tobytes())
    fields: Mapping[str, np.ndarray] = episode.fields
    for name in sorted(fields):
        whole.update(np.ascontiguousarray(fields[name]).tobytes())
    if not fields and episode.pictures is not None:  # short episodes of equal actions may have been seen elsewhere
        whole.update(episode.pictures(0).tobytes())
    return whole.digest()
