"""Builds the network: from a checkpoint's folder, or with random weights; its frozen layers in 16, 8 or 4 bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...shared.files import FORMATS
from ...shared.quantized import quantized_layers, replace_linears
from ..network.config import NetConfig
from ..network.initialize import initialize
from ..network.model import OpenVLAOFT
from ..settings import Settings
from .checkpoint import Folder, ignored, load_exact


def build_network(
    settings: Settings, net: NetConfig, eos_id: int, folder: Folder | None, device: torch.device | str = "cpu"
) -> OpenVLAOFT:
    """Builds the network without memory or random numbers, then fills it from a checkpoint or at random."""
    with torch.device("meta"):
        model = OpenVLAOFT(net, eos_id, settings.attn_implementation)
    if settings.quantization_bit is not None:  # a layer's weight is in 16 bits while its codes are made, and no longer
        replace_linears(model.language_model.model.layers, settings.quantization_bit)
    if folder is None:
        # Frozen weights never exist in float32. The trained lora_modules_to_save therefore start rounded.
        model.to(FORMATS[settings.precision] if settings.is_lora else torch.float32).to_empty(device=device)
        initialize(model, net, settings.seed, dtype=FORMATS[settings.precision])
    else:
        load_exact(model, folder.tensors(), ignored(net), device, folder.path)
    model.language_model.rebuild_rotary()
    return model


def full_weights(model: OpenVLAOFT, settings: Settings) -> dict[str, Tensor]:
    """Reads in full the base weights that ``model`` holds in 8 or 4 bits; by their names in the network."""
    names = quantized_layers(model)
    if not names:
        return {}
    settings = replace(settings, quantization_bit=None)
    folder = None if settings.model_path is None else Folder.open(settings.model_path)
    network = build_network(settings, model.net, model.eos_id, folder)
    own = (name.removesuffix(".base_layer") for name in names)
    return {f"{name}.weight": network.get_parameter(f"{name}.weight").detach() for name in own}
