"""Reads adapter folders of peft: tensors by their names in the network, and what is said of them.

peft's configuration can ask for more than ``W x + s · B A x``. What changes the numbers and is not computed here is
refused, with the lines that merge the adapter into its network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from embodied.errors import CheckpointError
from embodied.lib.files import inside
from embodied.weights.naming import plain_name

from ..files import read_json, read_pt, read_safetensors

FILE, BIN, CONFIG = "adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"
# What its own numbers depend on, and is not computed here: field → values that ask for nothing.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": (None, "LORA"),
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "alora_invocation_tokens": (None,),
    "lora_bias": (None, False),
    "bias": (None, "none"),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "megatron_config": (None,),
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
}
WHY: Mapping[str, str] = {
    "use_dora": "DoRA scales each row by a learned length",
    "bias": "the biases of the network's layers were trained as well",
    "lora_bias": "the adapters have biases",
    "init_lora_weights": "this beginning changes the network's own weights",
    "peft_type": "it is no LoRA",
}
MERGE = (
    'merge it into its network: python -c "from peft import PeftModel; from transformers import '
    "AutoModelForCausalLM as M; "
    "PeftModel.from_pretrained(M.from_pretrained('{base}'), '{folder}').merge_and_unload()"
    ".save_pretrained('DIR')\"; then copy the tokenizer's files to DIR, set actor.model.model_path=DIR and leave "
    "actor.model.lora_path out"
)


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Reads an adapter's tensors by their names in the network, without peft's and other programs' prefixes.

    Raises:
        CheckpointError: no adapter in the folder, or numbers are not finite.
        DamagedCheckpointError: the file is damaged.
    """
    file, old = inside(folder, FILE), inside(folder, BIN)
    if file.is_file():
        return {_name(name): tensor for name, tensor in read_safetensors(file)}
    if old.is_file():
        return {_name(name): tensor for name, tensor in read_pt(old).items()}
    raise CheckpointError(f"no {FILE} in {folder}", "set actor.model.lora_path to a peft adapter folder, or null")


def _name(name: str) -> str:
    """Returns a name as peft writes it for an adapter alone, without the adapter's own name. What belongs to a layer
    itself keeps ``base_layer``: it is no part of the adapter."""
    parts = plain_name(name).split(".")
    kept = [part for place, part in enumerate(parts) if part != "default" or not parts[place - 1].startswith("lora_")]
    return ".".join(kept)


def adapter_settings(folder: Path) -> dict[str, Any]:
    """Reads ``adapter_config.json``.

    Raises:
        CheckpointError: there is none: no tensor tells how an adapter is scaled.
        DamagedCheckpointError: it is damaged.
    """
    file = inside(folder, CONFIG)
    if not file.is_file():
        raise CheckpointError(
            f"{folder} has no {CONFIG}, and no tensor tells how an adapter is scaled",
            f"copy {CONFIG} from where the adapter was saved",
        )
    return read_json(file)


MERGE_OFT = (
    "merge it into its network with OpenVLA-OFT's vla-scripts/merge_lora_weights_and_save.py, set "
    "actor.model.model_path to the folder that it writes, and leave actor.model.lora_path out"
)


def check_plain(config: Mapping[str, Any], folder: Path, merge: str) -> None:
    """Refuses an adapter whose configuration asks for more than plain LoRA.

    Args:
        merge: how to merge it, :data:`MERGE` or another text.

    Raises:
        CheckpointError: its configuration asks for what is not computed here.
    """
    for key, plain in PLAIN.items():
        value = config.get(key)
        if not any(value is one or value == one for one in plain):
            why = WHY.get(key, "it is computed in another way than W x + s · B A x")
            raise CheckpointError(
                f"{folder / CONFIG} says {key} {str(value)[:60]!r}, which is not computed here: {why}",
                merge_fix(config, folder, merge),
            )


def merge_fix(config: Mapping[str, Any], folder: Path, merge: str) -> str:
    """Formats ``merge``, the sentence on how an adapter is merged into its network, with the names that are known."""
    base = config.get("base_model_name_or_path") or "NETWORK"
    return merge.format(base=base, folder=folder)
