"""Vision towers with FiLM layers as OFT+ writes them: ``vision_backbone--{step}_checkpoint.pt``.

The file holds the whole vision backbone as it was trained. Blocks are wrapped (``blocks.N.block.…`` beside
``blocks.N.scale.…`` and ``blocks.N.shift.…``). Names may begin with DDP's ``module.``. LoRA adapters stand beside their
layers (``….base_layer.weight``, ``….lora_A.default.weight``) with OFT's scale min(r, 16) / r; they are merged here in
float32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from embodied.lib.files import reading

from ...shared.files import read_pt
from .names import released_name

FILM_FILE = "vision_backbone--*.pt"
FILM_LAYER = re.compile(r"blocks\.\d+\.(scale|shift)\.")
TOWERS = "vision_backbone."
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"


def read_film(file: Path) -> dict[str, Tensor]:
    """Reads FiLM's tensors of ``file`` under the network's names. Raises CheckpointError if the file cannot be read."""
    with reading(file, "its adapters do not fit its layers"):
        return _merged({released_name(name): tensor for name, tensor in read_pt(file).items()})


def film_file(towers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames FiLM's tensors as in the file of OFT: the inverse of :func:`read_film`, without adapters."""
    return {re.sub(r"(blocks\.\d+)\.(?!scale\.|shift\.)", r"\1.block.", name): t for name, t in towers.items()}


def _merged(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    state = {name.replace(".base_layer.", "."): tensor for name, tensor in values.items() if ".lora_" not in name}
    for layer in (name.removesuffix(_A) for name in values if name.endswith(_A)):
        base = state[f"{layer}.weight"].float()
        state[f"{layer}.weight"] = base + _delta(values[layer + _A], values[layer + _B]).view_as(base)
    return state


def _delta(a: Tensor, b: Tensor) -> Tensor:
    """``s · B A``. In a convolution the kernel dimensions follow the first two."""
    rank = a.shape[0]
    return (min(rank, 16) / rank) * (b.float().flatten(1) @ a.float().flatten(1))
