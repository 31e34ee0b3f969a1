"""Number formats of weights in files: which are read, and which hold codes that only their own library understands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError
from embodied.weights.header import Entry
from embodied.weights.naming import BUFFERS

CODES = {
    "qweight": "GPTQ or AWQ", "qzeros": "GPTQ or AWQ", "weight_packed": "compressed-tensors",
    "weight_scale": "8-bit numbers with scales", "weight_scale_inv": "8-bit numbers with scales",
    "SCB": "bitsandbytes, 8 bits", "absmax": "bitsandbytes, 4 bits", "quant_map": "bitsandbytes, 4 bits",
}  # fmt: skip
"""Last part of a tensor's name → what writes it."""
FIX = (
    "use the checkpoint in bf16, fp16 or fp32 (the one that this was made from); actor.model.quantization_bit=8 or 4 "
    "puts its frozen layers in few bits while it is read"
)


def check_formats(headers: Mapping[Path, Mapping[str, Entry]]) -> None:
    """Raises CheckpointError if weights are quantized, or stored in fewer than 16 bits."""
    for file, header in headers.items():
        for name, entry in header.items():
            if BUFFERS.search(name):
                continue
            leaf = name.rsplit(".", 1)[-1]
            if leaf in CODES:
                raise CheckpointError(f"{file} holds quantised weights ({CODES[leaf]}): it has {name}", FIX)
            if entry.dtype in ("I8", "U8") or entry.dtype.startswith(("F8", "F6", "F4")):
                raise CheckpointError(
                    f"{file} holds quantised weights: {name} is stored as {entry.dtype}, expected BF16, F16 or F32", FIX
                )


def check_declared(config: Mapping[str, Any], file: Path) -> None:
    """Raises CheckpointError if a config.json declares the weights quantized. The files' own formats come first."""
    said = config.get("quantization_config")
    if said is None:
        return
    method = said.get("quant_method", "unknown") if isinstance(said, Mapping) else said
    raise CheckpointError(
        f"{file} has a quantization_config (quant_method {method!r}), and the weights beside it are plain numbers",
        f"remove quantization_config from {file}; actor.model.quantization_bit=8 or 4 puts frozen layers in few bits",
    )
