"""Writes a policy as a Hugging Face folder: config.json, weights, tokenizer, generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file
from torch import Tensor

from embodied.errors import CheckpointError

from ..shared.files import SHARD_BYTES, write_weights
from ..shared.lora import merged_state, save_adapter

if TYPE_CHECKING:
    from .policy import CausalLMPolicy

ADAPTER_FOLDER = "lora_adapter"
VALUE_HEAD_FILE = "value_head.safetensors"


def save_folder(policy: CausalLMPolicy, path: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write everything that ``model_path`` needs, in float32: weights with adapters merged, and the adapters beside
    them. transformers reads the folder, too.

    Raises:
        CheckpointError: the folder holds files already.
    """
    if path.exists() and any(path.iterdir()):
        raise CheckpointError(f"{path} is not empty", "give a new folder; nothing is overwritten")
    path.mkdir(parents=True, exist_ok=True)
    network = policy.network
    config = type(network.config).from_dict({**network.config.to_dict(), "dtype": "float32"})
    config.architectures = [type(network).__name__]
    config.save_pretrained(path)
    network.generation_config.save_pretrained(path)
    policy.tokenizer.tokenizer.save_pretrained(path)
    write_weights(_without_copies(policy), path, shard_bytes)
    if policy.settings.is_lora:
        save_adapter(network, path / ADAPTER_FOLDER)
    if policy.value_head is not None:
        values = {name: value.detach().float().cpu() for name, value in policy.value_head.state_dict().items()}
        save_file(values, str(path / VALUE_HEAD_FILE))


def _without_copies(policy: CausalLMPolicy) -> dict[str, Tensor]:
    """The merged weights; of tied ones the embedding alone, as transformers writes them."""
    state = merged_state(policy.network)
    if policy.network.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state
