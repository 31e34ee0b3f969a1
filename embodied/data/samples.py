"""Episodes → samples: an observation with the K actions that followed it.

Every control step of an episode begins one chunk. Beyond the end of its episode a chunk repeats the last action; its
mask is False there, so these actions carry no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from embodied import instructions
from embodied.data.demonstrations import Demonstration
from embodied.data.texts.text import TextSamples
from embodied.errors import ConfigError
from embodied.random import Stream, generator, held_out_count
from embodied.types import ActionSpec, ArraySpec, EnvSpec, TextAction

T = TypeVar("T")


class SampleSource(Protocol):
    """Interface of a training set: N samples, numbered from 0."""

    def __len__(self) -> int: ...

    def mask(self, chosen: np.ndarray) -> np.ndarray:
        """Which actions of the samples ``chosen`` int64 [B] were taken: bool [B, K]."""
        ...

    def actions(self, chosen: np.ndarray) -> np.ndarray:
        """Actions of the samples ``chosen`` int64 [B], as :meth:`batch` has them, without reading an observation."""
        ...

    def batch(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Observation fields and ``actions`` of the samples ``chosen`` int64 [B], as the env has them: [B, …]."""
        ...

    def instructions(self, chosen: np.ndarray) -> list[str]:
        """Instructions of the samples ``chosen`` int64 [B]."""
        ...

    def env_of_policy(self, env: EnvSpec, held_out: Self) -> EnvSpec:
        """Returns the env to which a policy is bound that learns from these samples and is measured on others."""
        ...


def samples_of(
    demonstrations: Sequence[Any], chunk: int, action: ActionSpec, pictures: ArraySpec | None = None
) -> SampleSource:
    """The samples of episodes, or of demonstrated answers if the env takes text.

    Args:
        demonstrations: :class:`Demonstration` or :class:`embodied.data.texts.text.DemonstratedAnswer`.
        chunk: K.
        pictures: of an observation of an env that takes text; None = it has none.
    """
    if isinstance(action, TextAction):
        return TextSamples(demonstrations, action.max_bytes, pictures)
    return Samples(demonstrations, chunk)


class Samples:
    """N samples of episodes, numbered by episode and time.

    Args:
        chunk: K.
    """

    def __init__(self, episodes: Sequence[Demonstration], chunk: int) -> None:
        self._episodes, self._chunk = episodes, chunk
        lengths = np.array([len(episode) for episode in episodes], np.int64)
        self._owner = np.repeat(np.arange(len(episodes)), lengths)
        self._time = np.concatenate([np.arange(length) for length in lengths]) if len(lengths) else np.zeros(0, int)
        self._left = lengths[self._owner] - self._time  # control steps from t to the end

    def __len__(self) -> int:
        return len(self._owner)

    def mask(self, chosen: np.ndarray) -> np.ndarray:
        """Bool [B, K], True for the actions of each chunk that were taken."""
        return np.arange(self._chunk) < self._left[chosen][:, None]

    def actions(self, chosen: np.ndarray) -> np.ndarray:
        """Actions of the samples ``chosen`` int64 [B]: float32 [B, K, A] or int32 [B, K]."""
        ahead = np.arange(self._chunk)
        rows = [(self._episodes[self._owner[i]].actions, int(self._time[i])) for i in chosen]
        return np.stack([actions[np.minimum(t + ahead, len(actions) - 1)] for actions, t in rows])

    def batch(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Samples at the indices ``chosen``, int64 [B].

        Returns:
            ``images`` uint8 [B, C, H, W, 3] if there are pictures, the other observation fields, and ``actions``
            float32 [B, K, A] or int32 [B, K].
        """
        rows = [(self._episodes[self._owner[i]], int(self._time[i])) for i in chosen]
        names = [name for name in rows[0][0].fields if name != instructions.FIELD]
        fields = {name: np.stack([episode.fields[name][t] for episode, t in rows]) for name in names}
        seen = [episode.pictures(t) for episode, t in rows if episode.pictures is not None]
        return {
            **fields,
            **({"images": np.stack(seen)} if seen else {}),
            "actions": self.actions(chosen),
        }

    def instructions(self, chosen: np.ndarray) -> list[str]:
        """Instructions of the samples ``chosen`` int64 [B], from the observation if it has one, else the episode."""
        return [self._episodes[self._owner[i]].instruction_at(int(self._time[i])) for i in chosen]

    def env_of_policy(self, env: EnvSpec, held_out: Self) -> EnvSpec:
        """Returns the env with the episodes' instructions as its tasks, which may be others."""
        episodes = [*self._episodes, *held_out._episodes]
        tasks = tuple(dict.fromkeys(told for episode in episodes for told in episode.instructions))
        return replace(env, tasks=tasks, num_init_states=(1,) * len(tasks))


def spread(samples: SampleSource, count: int) -> np.ndarray:
    """Returns indices of up to ``count`` samples, spread evenly over all: int64."""
    return np.unique(np.linspace(0, len(samples) - 1, min(count, len(samples))).round().astype(np.int64))


def hold_out(episodes: Sequence[T], test_size: float, seed: int) -> tuple[list[T], list[T]]:
    """Split episodes into ``(for training, held out)``; ``seed`` draws them.

    ``test_size`` is read by :func:`embodied.random.held_out_count`. At least one episode stays for training.
    """
    count = held_out_count(len(episodes), test_size)
    drawn = generator(seed, Stream.HELD_OUT).permutation(len(episodes))
    out = set(drawn[: min(count, len(episodes) - 1)].tolist())
    return [e for i, e in enumerate(episodes) if i not in out], [e for i, e in enumerate(episodes) if i in out]


def order(
    count: int, seed: int, first: int, number: int, shuffle: bool = True, drop_last: bool = False
) -> np.ndarray:  # fmt: skip
    """Returns sample indices at the places ``first`` … ``first + number`` of the endless training sequence:
    int64 [number].

    The sequence goes through all ``count`` samples in one random order, then in another, and so on. The result depends
    only on the arguments.

    Args:
        shuffle: False = the same order each time, that of the samples' numbers.
        drop_last: each pass through the samples leaves out those at its end that do not fill ``number``.

    Raises:
        ConfigError: ``drop_last`` leaves out all samples.
    """
    if not (used := count - count % number if drop_last else count):
        raise ConfigError(
            f"data.drop_last leaves out all {count} samples: an optimizer step takes {number}",
            "set data.drop_last=false, or lower actor.global_batch_size",
        )
    return np.fromiter(_sequence(count, used, seed if shuffle else None, first, number), np.int64, number)


def _sequence(count: int, used: int, seed: int | None, first: int, number: int) -> Iterator[int]:
    done = 0
    while done < number:
        epoch, place = divmod(first + done, used)
        whole = np.arange(count) if seed is None else generator(seed, Stream.SAMPLES, epoch).permutation(count)
        part = whole[place : min(used, place + number - done)]
        yield from part.tolist()
        done += len(part)
