"""Tensors of the original layout that never influence an action: the last blocks of the towers, final norms, pooling.

Other programs expect them in a folder. They are copied from the checkpoint that the policy came from; a network that
was made here has none, and gets zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..network.config import NetConfig, TowerConfig
from .checkpoint import Folder, ignored

TOWERS = ("featurizer", "fused_featurizer")


def dead_tensors(folder: Folder | None, config: NetConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of the released layout that our network lacks: from the policy's folder, else zeros.

    Args:
        folder: where the policy came from; None = it was made here.
        state: the network's own tensors, by their names in the layout.
    """
    made = {name: torch.zeros(shape) for name, shape in _shapes(config, state)}
    patterns = ignored(config)
    found = () if folder is None else folder.tensors()
    copied = {name: tensor for name, tensor in found if any(p.match(name) for p in patterns)}
    return {name: tensor for name, tensor in (made | copied).items() if name not in state}


def _shapes(config: NetConfig, state: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in TOWERS:
        tower: TowerConfig = getattr(config, name)
        prefix, last = f"vision_backbone.{name}", tower.depth - 1
        for key, tensor in state.items():  # a block like the one before it
            if key.startswith(f"{prefix}.blocks.{last - 1}."):
                yield re.sub(r"blocks\.\d+\.", f"blocks.{last}.", key, count=1), tuple(tensor.shape)
        yield f"{prefix}.norm.weight", (tower.width,)
        yield f"{prefix}.norm.bias", (tower.width,)
    yield from _pooling(config.fused_featurizer)


def _pooling(tower: TowerConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    prefix, width, wide = "vision_backbone.fused_featurizer.attn_pool", tower.width, tower.mlp_width
    yield f"{prefix}.latent", (1, 1, width)
    yield f"{prefix}.norm.weight", (width,)
    yield f"{prefix}.norm.bias", (width,)
    sizes = {"q": (width, width), "kv": (2 * width, width), "proj": (width, width)}
    sizes |= {"mlp.fc1": (wide, width), "mlp.fc2": (width, wide)}
    for layer, (rows, columns) in sizes.items():
        yield f"{prefix}.{layer}.weight", (rows, columns)
        yield f"{prefix}.{layer}.bias", (rows,)
