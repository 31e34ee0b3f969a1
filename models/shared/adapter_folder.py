"""Checks that a policy's adapters can be exported alone: the network below them stays where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from embodied.errors import ConfigError

from .exporting import check_plain, check_undivided


class Adapted(Protocol):
    """Interface of settings under ``actor.model`` that decide whether adapters can be exported alone."""

    @property
    def is_lora(self) -> bool: ...
    @property
    def model_path(self) -> str | None: ...


def check_adapters(settings: Adapted, dtype: str, options: Mapping[str, Any]) -> str:
    """Refuses to export adapters alone where a folder of adapters could not hold all that was trained; returns the path
    of the base model.

    Raises:
        ConfigError: the policy has no adapters, nobody else has the network below them, or an option has no meaning.
    """
    if not settings.is_lora:
        raise ConfigError("the policy has no adapters: all of its weights were trained", "write --format hf")
    if settings.model_path is None:
        raise ConfigError("the network below the adapters was made at random, and is nowhere else", "write --format hf")
    if dtype not in ("fp32", "auto"):
        raise ConfigError(f"adapters are written in fp32, not in {dtype}: they are small", "leave --dtype out")
    check_plain(options, "adapter")
    check_undivided(options, "adapter")
    return settings.model_path
