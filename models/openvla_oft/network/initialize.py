"""Random weights as a pure function of (seed, parameter name, kind of device).

Adding a head changes no other weight, and nothing touches the global random state.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn

from ...shared.quantized import quantized_layers
from .config import NetConfig


def initialize(
    module: nn.Module, config: NetConfig, seed: int, prefix: str = "", dtype: torch.dtype = torch.float32
) -> None:  # fmt: skip
    """Fills every parameter of ``module`` with random values, in place. Its old values do not matter; it may come from
    ``to_empty``.

    Args:
        dtype: of a weight before it is put in 8 or 4 bits.
    """
    coded = {f"{name}.weight": layer for name, layer in quantized_layers(module).items()}
    with torch.no_grad():
        for name, parameter in [*module.named_parameters()]:
            if (layer := coded.get(name)) is None:
                _fill(parameter, prefix + name, config, seed)
                continue
            weight = torch.empty(layer.shape, dtype=dtype, device=parameter.device)
            _fill(weight, prefix + name, config, seed)
            layer.quantize(weight)


def _fill(parameter: Tensor, name: str, config: NetConfig, seed: int) -> None:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "scale_factor":
        parameter.fill_(config.layer_scale_init)
    elif leaf == "bias":
        parameter.zero_()
    elif parameter.dim() == 1:  # weights of norms
        parameter.fill_(1.0)
    else:
        parameter.copy_(_normal(parameter.shape, seed, name, parameter.device) * _std(parameter, name, config))


def _std(parameter: Tensor, name: str, config: NetConfig) -> float:
    if name.endswith("pos_embed"):
        return config.pos_embed_std
    if name.startswith("value_head"):  # keeps values of order one at any width
        return 1.0 / math.sqrt(parameter.shape[1])
    return config.initializer_range


def _normal(shape: torch.Size, seed: int, name: str, device: torch.device) -> Tensor:
    # Seed and name are hashed together because torch's CPU generator uses only 32 bits of a seed.
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(shape, generator=generator, device=device)
