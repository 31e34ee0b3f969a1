"""Names of tensors without what other programs put around modules: compilers, wrappers of several processes, peft.

==============================  ===========================================  =====================
written by                      name there                                   name here
==============================  ===========================================  =====================
torch.compile                   ``_orig_mod.``, anywhere                     nothing
FSDP, its checkpointing         ``_fsdp_wrapped_module.``, anywhere          nothing
activation checkpointing        ``_checkpoint_wrapped_module.``, anywhere    nothing
Lightning Fabric                ``_forward_module.``, anywhere               nothing
DDP, DeepSpeed                  ``module.`` in front                         nothing
peft, saved whole               ``base_model.model.`` in front               nothing
peft, adapted layers            ``q_proj.base_layer.weight``                 ``q_proj.weight``
any class around the network    the same in front of every name              nothing
==============================  ===========================================  =====================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from embodied.errors import CheckpointError

WRAPPERS = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "base_layer"}
)
LEADING = (("module",), ("base_model", "model"))
ADAPTED = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector", "modules_to_save")
"""Parts of names that only a peft model has whose adapters were not merged."""
FLAT = ("_flat_param", "flat_param")
BUFFERS = re.compile(
    r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|position_ids|causal_mask|(self_attn|attn|attention)\.(masked_)?bias)$"
)
"""Tensors that are no weights: older programs saved with them what a network computes anew."""
MERGE = (
    "merge them with peft where the network was trained: `model = model.merge_and_unload()` and then "
    "`model.save_pretrained('DIR')`; or save the adapters alone (`model.save_pretrained('DIR')` of the PeftModel) and "
    "set {key}lora_path=DIR beside the network that they were trained on"
)


def plain_name(name: str) -> str:
    """Strips the prefixes of wrappers (DDP, FSDP, torch.compile) from a tensor's name.

    >>> plain_name("module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight")
    'model.layers.0.mlp.up_proj.weight'
    >>> plain_name("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while found := next((len(one) for one in LEADING if tuple(parts[: len(one)]) == one), 0):
        parts = parts[found:]
    return ".".join(parts)


def plain_names(names: Iterable[str], anchors: Sequence[str], folder: Path) -> dict[str, str]:
    """Maps the names of a network's tensors in files to plain ones, without prefixes of wrappers.

    Args:
        anchors: endings of a tensor that each network has, from the longest. What stands in front of it, and of each
            other name, belongs to a class around the network.

    Raises:
        CheckpointError: two tensors have the same plain name, or they are parts of FSDP that no name tells.
    """
    plain = {name: plain_name(name) for name in names}
    if flat := sorted(name for name in plain if name.rsplit(".", 1)[-1] in FLAT):
        raise CheckpointError(
            f"{folder} holds parameters that FSDP has laid end to end ({flat[0]}), which have no names of their own",
            "save a full state dict where it was trained (FSDP: StateDictType.FULL_STATE_DICT)",
        )
    prefix = common_prefix(plain.values(), anchors)
    plain = {name: found.removeprefix(prefix) for name, found in plain.items()}
    owners: dict[str, str] = {}
    for name, found in plain.items():
        if (other := owners.setdefault(found, name)) != name:
            raise CheckpointError(
                f"{folder} has two tensors for {found}: {other} and {name}",
                "remove one of them; they are those of two networks, or of a network and its wrapped self",
            )
    return plain


def common_prefix(names: Iterable[str], anchors: Sequence[str]) -> str:
    """Determines the prefix that stands in front of an anchor and of every other name; "" if there is none."""
    names = list(names)
    for anchor in anchors:
        for name in names:
            prefix = name.removesuffix(anchor)
            if name.endswith(f".{anchor}") and all(other.startswith(prefix) for other in names):
                return prefix
            if name == anchor:
                return ""
    return ""


def check_merged(names: Iterable[str], folder: Path, key: str) -> None:
    """Refuses a peft model that was saved whole with its adapters unmerged: without them the numbers are others.

    Args:
        key: of the section that ``lora_path`` stands in, with a dot at its end.

    Raises:
        CheckpointError: there are such tensors.
    """
    adapted = sorted(name for name in names if not set(ADAPTED).isdisjoint(name.split(".")))
    if adapted:
        raise CheckpointError(
            f"{folder} is a peft model saved whole, whose {len(adapted)} tensors of adapters are not merged into their "
            f"layers (e.g. {adapted[0]}); how they are scaled stands in no tensor",
            MERGE.format(key=key),
        )
