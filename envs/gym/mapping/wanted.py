"""The mapping as the configuration has it, and checks of its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embodied.errors import ConfigError, did_you_mean

from ..facts import GymFacts
from ..settings import KEY
from ..sources import RENDER, Source, listed


@dataclass(frozen=True)
class Wanted:
    """The mapping as the configuration has it. None = found out (:func:`mapping_of`)."""

    images: Sequence[str] | None = None
    image_size: int | Sequence[int] | None = None
    image_layout: str | None = None
    image_range: Sequence[float] | None = None
    rotate_images: bool = False
    state: Sequence[str] | None = None
    instruction_from: str | None = None
    instruction_bytes: int = 256
    success: str | None = None
    progress: str = "return"
    progress_range: Sequence[float] | None = None


def known(source: Source, key: str, facts: GymFacts) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a source. Raises :class:`ConfigError` if the env does not have it."""
    if source.name not in facts.said:
        raise ConfigError(
            f"{key} names {source.name}, which the env does not have.{did_you_mean(source.name, facts.said)}",
            f"there are: {listed(facts.said)}",
        )
    return facts.said[source.name]


def in_each(source: Source, key: str, facts: GymFacts) -> Source:
    """A source that every observation has. Raises :class:`ConfigError` for another."""
    if source.name not in (*facts.entries, RENDER):
        known(source, key, facts)
        raise ConfigError(
            f"{key} names {source.name}, which only later steps of an episode have",
            f"let the env, or a wrapper of {KEY}.wrappers, give it with each reset() and step(), or leave it out",
        )
    return source


def range_of(key: str, given: Sequence[float] | None, example: str) -> tuple[float, float] | None:
    """Two numbers. Raises :class:`ConfigError` for anything else, with an example."""
    if given is None:
        return None
    numbers = [float(number) for number in given] if not isinstance(given, str) else []
    if len(numbers) != 2 or numbers[0] == numbers[1] or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{key} is {given!r}, expected two different numbers", f"set {key}={example}")
    return numbers[0], numbers[1]


def check_list(key: str, got: Any, example: str) -> None:
    """Raises :class:`ConfigError` for a text in place of a list."""
    if isinstance(got, str):
        raise ConfigError(f"{key} is {got!r}, expected a list", f"set {key}={example}")
