"""Writes a policy as a folder in the layout of the released checkpoints (see :mod:`.checkpoint`)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from embodied.errors import CheckpointError

from ..shared.files import SHARD_BYTES, write_json, write_weights
from ..shared.lora import merged_state, save_adapter
from .checkpoint import ADAPTER_FOLDER, TIMM_IDS, VALUE_HEAD_FILE, Folder, dead_tensors
from .config import N_BINS, OPENVLA_7B, NetConfig
from .film import FILM_FILE, TOWERS, film_file

if TYPE_CHECKING:
    from .policy import OpenVLAOFTPolicy


def save_folder(policy: OpenVLAOFTPolicy, path: Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Write everything ``model_path`` needs: weights with adapters merged and, as in OFT, the adapters beside them.

    Tensors that are not built are copied from the policy's own checkpoint.

    Raises:
        CheckpointError: the folder holds files already, or the policy is not bound to an env (no action range).
    """
    if path.exists() and any(path.iterdir()):
        raise CheckpointError(f"{path} is not empty", "give a new folder; nothing is overwritten")
    if policy.action_range is None:
        raise CheckpointError("the policy has no action range yet", "bind it to an env before saving")
    path.mkdir(parents=True, exist_ok=True)
    _write_tensors(policy, path, shard_bytes)
    if policy.settings.is_lora:
        save_adapter(policy.model, path / ADAPTER_FOLDER)
    write_json(path / "config.json", _hf_config(policy.model.net))
    write_json(path / "dataset_statistics.json", _statistics(policy))
    write_json(path / "preprocessor_config.json", _preprocessor(policy))
    write_json(path / "policy.json", _sidecar(policy))
    shutil.copyfile(policy.tokenizer.path, path / "tokenizer.json")


def _write_tensors(policy: OpenVLAOFTPolicy, path: Path, shard_bytes: int) -> None:
    state = merged_state(policy.model)
    proprio = {k.split(".", 1)[1]: state.pop(k) for k in list(state) if k.startswith("proprio_projector.")}
    if proprio:
        torch.save(proprio, path / "proprio_projector--0_checkpoint.pt")
    if policy.value_head is not None:
        values = {
            name: tensor.detach().float().cpu().contiguous() for name, tensor in policy.value_head.state_dict().items()
        }
        save_file(values, str(path / VALUE_HEAD_FILE))
    if policy.settings.model_path is not None:
        state |= dead_tensors(Folder.open(policy.settings.model_path), policy.model.net)
    if policy.model.net.film:
        towers = {name: state.pop(name) for name in list(state) if name.startswith(TOWERS)}
        torch.save(film_file(towers), path / FILM_FILE.replace("*", "0_checkpoint"))
    write_weights(state, path, shard_bytes)


def _hf_config(net: NetConfig) -> dict[str, Any]:
    """config.json for the original code. ``timm_model_ids`` is there only if the towers are the released ones."""
    towers = (net.featurizer, net.fused_featurizer) == (OPENVLA_7B.featurizer, OPENVLA_7B.fused_featurizer)
    text = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "rope_theta",
    )
    return {
        "model_type": "openvla",
        "architectures": ["OpenVLAForActionPrediction"],
        "arch_specifier": "no-align+fused-gelu-mlp",
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "use_fused_vision_backbone": True,
        "timm_model_ids": TIMM_IDS if towers else None,
        "timm_override_act_layers": [None, None],
        "image_sizes": [net.image_size, net.image_size],
        "image_resize_strategy": "resize-naive",
        "llm_backbone_id": "llama2-7b-pure",
        "n_action_bins": N_BINS,
        "pad_to_multiple_of": net.padded_vocab - net.vocab_size,
        "pad_token_id": net.vocab_size,
        "text_config": {"model_type": "llama", "vocab_size": net.padded_vocab, **{n: getattr(net, n) for n in text}},
    }


def _statistics(policy: OpenVLAOFTPolicy) -> dict[str, Any]:
    assert policy.action_range is not None
    blocks = {"action": policy.action_range.to_statistics()}
    if policy.statistics.proprio is not None:
        blocks["proprio"] = policy.statistics.proprio.to_statistics()
    return {policy.statistics.name: blocks}


def _preprocessor(policy: OpenVLAOFTPolicy) -> dict[str, Any]:
    mean, std = (buffer.view(2, 3).tolist() for buffer in (policy.pixels.mean, policy.pixels.std))
    return {
        "image_resize_strategy": "resize-naive",
        "tvf_normalize_params": [{"mean": m, "std": s, "inplace": False} for m, s in zip(mean, std, strict=True)],
    }


def _sidecar(policy: OpenVLAOFTPolicy) -> dict[str, Any]:
    settings = policy.settings
    return {
        "net": policy.model.net.to_dict(),
        "attention_open": policy.attention_open,
        "attention_probe": policy.attention_probe,
        "center_crop": settings.center_crop,
        "image_preset": settings.image_preset,
        "policy_setup": settings.policy_setup,
        "unnorm_key": policy.statistics.name,
        "action_normalization": policy.statistics.normalization.kind,
    }
