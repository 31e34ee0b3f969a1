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
class MappingSettings:
    """The configured mapping from an env's values to observation and success; None = inferred (:func:`mapping_of`)."""

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
    progress_features: Sequence[str] | None = None


def known(source: Source, key: str, facts: GymFacts) -> tuple[tuple[int, ...], str]:
    """Returns shape and dtype of a source's entry. Raises :class:`ConfigError`, naming ``key``, if the env does not
    have it."""
    if source.name not in facts.all_entries:
        raise ConfigError(
            f"{key} names {source.name}, which the env does not have.{did_you_mean(source.name, facts.all_entries)}",
            f"there are: {listed(facts.all_entries)}",
        )
    return facts.all_entries[source.name]


def in_each(source: Source, key: str, facts: GymFacts) -> Source:
    """Checks that every observation has a source, and returns it. Raises :class:`ConfigError`, naming ``key``."""
    if source.name not in (*facts.entries, RENDER):
        known(source, key, facts)
        raise ConfigError(
            f"{key} names {source.name}, which only later steps of an episode have",
            f"let the env, or a wrapper of {KEY}.wrappers, give it with each reset() and step(), or leave it out",
        )
    return source


def range_of(key: str, value: Sequence[float] | None, example: str) -> tuple[float, float] | None:
    """Checks that a key's value is two numbers, and returns them. Raises :class:`ConfigError` with ``example``."""
    if value is None:
        return None
    numbers = [float(number) for number in value] if not isinstance(value, str) else []
    if len(numbers) != 2 or numbers[0] == numbers[1] or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{key} is {value!r}, expected two different numbers", f"set {key}={example}")
    return numbers[0], numbers[1]


def check_list(key: str, got: Any, example: str) -> None:
    """Refuses what is no list of texts, where a key takes one. Raises :class:`ConfigError` with ``example``."""
    if isinstance(got, str) or not isinstance(got, Sequence):
        raise ConfigError(f"{key} is {got!r}, expected a list", f"set {key}={example}")
    for element in got:
        if not isinstance(element, str):
            raise ConfigError(f"{key} has {element!r}, expected texts alone", f"set {key}={example}")
