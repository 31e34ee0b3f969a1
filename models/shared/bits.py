"""Checks the key ``actor.model.quantization_bit``. Imports nothing heavy; :mod:`.quantized` has the layers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

from embodied.errors import AssetsMissingError

from .keys import bad

KEY = "quantization_bit"
INSTALL = "pip install 'embodied-rl[quantize]' (from a checkout: pip install -e '.[quantize]')"


class Quantizes(Protocol):
    """Interface of settings under ``actor.model`` that quantization depends on."""

    @property
    def quantization_bit(self) -> int | None: ...
    @property
    def is_lora(self) -> bool: ...


def check_quantization(settings: Quantizes, compiled: bool = False, frozen: bool | None = None) -> None:
    """Refuses settings with which quantization cannot work.

    Args:
        compiled: blocks are compiled.
        frozen: the layers are not trained; None = where there are adapters.

    Raises:
        ConfigError: another number of bits, layers that are trained, or compiled blocks.
        AssetsMissingError: bitsandbytes is not installed.
    """
    bits = settings.quantization_bit
    if bits is None:
        return
    if isinstance(bits, bool) or bits not in (8, 4):
        raise bad(KEY, bits, "weights are frozen in 8 or 4 bits", "set it to 8, 4, or null for the arithmetic's format")
    if not (settings.is_lora if frozen is None else frozen):
        reason = "is_lora is false, and weights of so few bits cannot be trained"
        raise bad(KEY, bits, reason, "set actor.model.is_lora=true, or this key to null")
    if compiled:
        reason = "a compiled block was not tried with such weights"
        raise bad(KEY, bits, reason, "set actor.model.torch_compile=false rollout.use_torch_compile=false")
    if find_spec("bitsandbytes") is None:
        raise AssetsMissingError(
            f"actor.model.{KEY}={bits} needs the Python package 'bitsandbytes', which is not installed", INSTALL
        )
