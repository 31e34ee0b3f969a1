"""Writes a policy as a Hugging Face folder: config.json, weights, tokenizer, generation_config.json."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from embodied.errors import CheckpointError

from ...shared.files import SHARD_BYTES, cast, write_weights
from ...shared.lora import merged_state, save_adapter
from ..parts import Parts
from .load import full_weights
from .own_code import save_code

ADAPTER_FOLDER = "lora_adapter"
VALUE_HEAD_FILE = "value_head.safetensors"


def save_folder(
    parts: Parts, path: Path, shard_bytes: int = SHARD_BYTES, dtype: torch.dtype = torch.float32
) -> None:  # fmt: skip
    """Writes a Hugging Face folder that ``model_path`` takes: weights with adapters merged, and beside them the
    adapters in float32. transformers reads the folder, too.

    Args:
        dtype: of the weights.

    Raises:
        CheckpointError: the folder holds files already, or a weight is too large for ``dtype``.
    """
    if path.exists() and any(path.iterdir()):
        raise CheckpointError(f"{path} is not empty", "give a new folder; nothing is overwritten")
    path.mkdir(parents=True, exist_ok=True)
    network = parts.network
    save_config(parts, path, dtype)
    network.generation_config.save_pretrained(path)
    write_weights({name: cast(name, value, dtype) for name, value in _without_copies(parts).items()}, path, shard_bytes)
    if parts.settings.is_lora:
        save_adapter(network, path / ADAPTER_FOLDER)
    if parts.value_head is not None:
        values = {name: value.detach().float().cpu() for name, value in parts.value_head.state_dict().items()}
        save_file(values, str(path / VALUE_HEAD_FILE))


def save_config(parts: Parts, path: Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes configuration and tokenizer, which with weights make the folder.

    Args:
        dtype: that the configuration says of the weights.
    """
    network, vision = parts.network, parts.vision
    own = network.config if vision is None else vision.config
    config = type(own).from_dict({**own.to_dict(), "dtype": str(dtype).removeprefix("torch.")})
    config.architectures = [type(network).__name__ if vision is None else vision.maker]
    save_code(network, config, path)
    config.save_pretrained(path)
    parts.tokenizer.tokenizer.save_pretrained(path)
    for name, data in ({} if vision is None else vision.files).items():
        (path / name).write_bytes(data)


def merged_weights(parts: Parts) -> dict[str, Tensor]:
    """Returns the network's weights in float32 on the CPU, adapters merged. What lies in 8 or 4 bits is read again in
    full."""
    full = full_weights(parts.network, parts.settings, parts.tokenizer.tokenizer)
    return merged_state(parts.network, full)


def _without_copies(parts: Parts) -> dict[str, Tensor]:
    """The merged weights; of tied ones the embedding alone, as transformers writes them."""
    state = merged_weights(parts)
    if parts.network.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state if parts.vision is None else parts.vision.named(state)
