"""Functions that several exporters share: choice of the number format, checks of options that a format cannot keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from embodied.errors import ConfigError, unknown_name
from embodied.protocols import EXPORT_DTYPES

from .files import SHARD_BYTES

LOSES_MEAN = 0.01
"""Nats that log-probs may move on average for ``--dtype auto`` to write 16 bits."""


class Computed(Protocol):
    """Interface of settings under ``actor.model`` that decide the number format."""

    @property
    def is_lora(self) -> bool: ...
    @property
    def precision(self) -> str: ...


def check_dtype(dtype: str) -> None:
    """Raises :class:`ConfigError` unless ``dtype`` is one in which folders of weights are written."""
    if dtype not in EXPORT_DTYPES:
        raise unknown_name("dtype", dtype, EXPORT_DTYPES, "--dtype")


def precision_of(settings: Computed, dtype: str) -> str:
    """Returns the number format in which a folder with weights of ``dtype`` is computed. Merged weights are computed
    with in the format that they were written in: in fewer bits they would be rounded once more."""
    return "fp32" if settings.is_lora and dtype == "fp32" else settings.precision


def shard_bytes(options: Mapping[str, Any]) -> int:
    """Returns how many bytes a file of weights may have (``max_shard_size``)."""
    return options.get("max_shard_size") or SHARD_BYTES


def check_plain(options: Mapping[str, Any], kind: str) -> None:
    """Raises :class:`ConfigError` if ``options`` ask a format of floating-point tensors to quantize."""
    if (quantize := options.get("quantize")) is not None:
        raise ConfigError(
            f"--quantize {quantize}: format {kind} holds tensors of floating point alone", "leave --quantize out"
        )


def check_undivided(options: Mapping[str, Any], kind: str) -> None:
    """Raises :class:`ConfigError` if ``options`` ask a format to divide its weights among files by their size, which it
    cannot."""
    if (size := options.get("max_shard_size")) is not None:
        raise ConfigError(
            f"--shard-size of {size} bytes: format {kind} does not divide its weights among files",
            "leave --shard-size out, or write --format hf",
        )
