"""Values of keys under ``actor.model``, for the settings of several networks. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean


def bad(key: str, value: Any, reason: str, fix: str) -> ConfigError:
    """Makes the error for a wrong value of a key under ``actor.model``."""
    return ConfigError(f"actor.model.{key} = {value!r}: {reason}", f"actor.model.{key}: {fix}")


def check_known(keys: Iterable[str], known: Sequence[str]) -> None:
    """Refuses keys under ``actor.model`` that a network does not have. Raises UnknownKeyError."""
    for key in keys:
        if key not in known:
            raise UnknownKeyError(
                f"unknown key 'actor.model.{key}'.{did_you_mean(key, known)}", f"known keys: {', '.join(known)}"
            )


class AdapterKeys:
    """Reads the keys of adapters and frozen weights that settings have."""

    is_lora: bool
    lora_path: str | None
    lora_rank: int
    lora_dropout: float
    lora_alpha: float | None
    lora_modules_to_save: str | Sequence[str] | None
    freeze_pattern: str | Sequence[str] | None

    def check_lora(self) -> None:
        """Refuses values of ``lora_alpha``, ``lora_dropout`` and ``lora_path`` that cannot work."""
        if self.lora_alpha is not None and not (_is_number(self.lora_alpha) and self.lora_alpha > 0):
            raise bad("lora_alpha", self.lora_alpha, "it scales the adapters", "set it above 0, e.g. 16")
        if not (_is_number(self.lora_dropout) and 0 <= self.lora_dropout < 1):
            raise bad("lora_dropout", self.lora_dropout, "it is a probability", "set it to at least 0 and below 1")
        if self.lora_path and not self.is_lora:
            reason = "is_lora is false, so there are no adapters"
            raise bad("lora_path", self.lora_path, reason, "set actor.model.is_lora=true")

    @property
    def lora_scale(self) -> float:
        """LoRA's alpha, by default the rank, at most 16."""
        return min(self.lora_rank, 16) if self.lora_alpha is None else self.lora_alpha

    @property
    def saved_modules(self) -> tuple[str, ...]:
        """Names of modules that are trained in full and saved beside adapters."""
        return as_tuple(self.lora_modules_to_save)

    @property
    def freeze_patterns(self) -> tuple[str, ...]:
        """Regular expressions of ``freeze_pattern``."""
        return as_tuple(self.freeze_pattern)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_tuple(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Converts one name or several to a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
