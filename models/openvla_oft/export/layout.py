"""Files beside the weights in the layout of the released checkpoints, as the original code reads them.

What stands in the folder that the policy came from is kept, so that fields and files that are of no use here still come
along: the whole tokenizer, and the original's Python files, which are not part of this library.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from embodied.lib.files import inside

from ...shared.files import read_json, write_json
from ..files.checkpoint import TIMM_IDS, Folder
from ..network.config import N_BINS, OPENVLA_7B, NetConfig
from ..parts import Parts

CODED = ("config.json", "preprocessor_config.json", "processor_config.json", "tokenizer_config.json")
TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model")
TEXT_FIELDS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "rms_norm_eps", "rope_theta"),
)


def write_layout(parts: Parts, base: Folder | None, path: Path, dtype: torch.dtype) -> None:
    """Writes every file of a released checkpoint's folder but the weights.

    Args:
        base: the folder that the policy came from.
        dtype: that the configuration says of the weights.
    """
    net, known = parts.model.net, statistics(parts, base)
    write_json(path / "config.json", _kept(base, "config.json") | _config(net, dtype))
    write_json(path / "dataset_statistics.json", known)
    pixels = _preprocessor(parts)
    used = {"tvf_normalize_params": pixels["tvf_normalize_params"]}
    write_json(path / "preprocessor_config.json", pixels | _kept(base, "preprocessor_config.json") | used)
    processor = {"processor_class": "PrismaticProcessor"}
    write_json(path / "processor_config.json", _kept(base, "processor_config.json") | processor)
    ends = {"bos_token_id": 1, "eos_token_id": parts.tokenizer.eos_id, "pad_token_id": net.vocab_size}
    write_json(path / "generation_config.json", {"_from_model_config": True, **ends})
    write_json(path / "policy.json", _sidecar(parts))
    _write_tokenizer(parts, base, path)
    for file in code_files(base):
        shutil.copyfile(file, path / file.name)


def code_files(base: Folder | None) -> list[Path]:
    """The original's Python files in the folder that the policy came from: those that its ``auto_map`` names."""
    named = [_kept(base, name).get("auto_map") for name in CODED]
    targets = [target for one in named if isinstance(one, dict) for target in one.values() if isinstance(target, str)]
    modules = dict.fromkeys(found[1] for target in targets if (found := re.fullmatch(r"(\w+)\.\w+", target)))
    if base is None:
        return []
    return [file for module in modules if (file := inside(base.path, f"{module}.py")).is_file()]


def _kept(base: Folder | None, name: str) -> dict[str, Any]:
    """A JSON file of the folder that the policy came from; empty if there is none."""
    if base is None or not (file := inside(base.path, name)).is_file():
        return {}
    return read_json(file)


def _config(net: NetConfig, dtype: torch.dtype) -> dict[str, Any]:
    """config.json for the original code. ``timm_model_ids`` is there only if the towers are the released ones."""
    towers = (net.featurizer, net.fused_featurizer) == (OPENVLA_7B.featurizer, OPENVLA_7B.fused_featurizer)
    name = str(dtype).removeprefix("torch.")
    text = {"model_type": "llama", "vocab_size": net.padded_vocab, "pad_token_id": net.vocab_size, "torch_dtype": name}
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
        "torch_dtype": name,
        "text_config": {**text, **{field: getattr(net, field) for field in TEXT_FIELDS}},
    }


def statistics(parts: Parts, base: Folder | None = None) -> dict[str, Any]:
    """Makes dataset_statistics.json: the ranges that the policy uses, and the other entries that its own folder has for
    the same data."""
    assert parts.now.action_range is not None
    blocks = {"action": parts.now.action_range.to_statistics()}
    if parts.now.statistics.proprio is not None:
        blocks["proprio"] = parts.now.statistics.proprio.to_statistics()
    name = parts.now.statistics.name
    before = {} if base is None else base.known_statistics().get(name, {})
    if not all(_same(before.get(key), block) for key, block in blocks.items()):
        return {name: blocks}
    return {name: {**before, **{key: {**before[key], **block} for key, block in blocks.items()}}}


def _same(before: Any, block: Mapping[str, Any]) -> bool:
    """Returns whether a folder's statistics have the entries that are used, with the same numbers."""
    return isinstance(before, dict) and all(before.get(key, value) == value for key, value in block.items())


def _preprocessor(parts: Parts) -> dict[str, Any]:
    mean, std = (buffer.view(2, 3).tolist() for buffer in (parts.pixels.mean, parts.pixels.std))
    side = parts.model.net.image_size
    resize = {"size": [side, side], "interpolation": 3, "max_size": None, "antialias": True}
    return {
        "image_processor_type": "PrismaticImageProcessor",
        "processor_class": "PrismaticProcessor",
        "use_fused_vision_backbone": True,
        "image_resize_strategy": "resize-naive",
        "input_sizes": [[3, side, side]] * 2,
        "interpolations": ["bicubic"] * 2,
        "means": mean,
        "stds": std,
        "tvf_resize_params": [resize] * 2,
        "tvf_crop_params": [{"output_size": [side, side]}] * 2,
        "tvf_normalize_params": [{"mean": m, "std": s, "inplace": False} for m, s in zip(mean, std, strict=True)],
        "tvf_do_letterbox": False,
        "tvf_letterbox_fill": None,
    }


def _sidecar(parts: Parts) -> dict[str, Any]:
    settings = parts.settings
    return {
        "net": parts.model.net.to_dict(),
        "attention_open": parts.now.attention_open,
        "attention_probe": parts.now.attention_probe,
        "center_crop": settings.center_crop,
        "image_preset": settings.image_preset,
        "policy_setup": settings.policy_setup,
        "unnorm_key": parts.now.statistics.name,
        "action_normalization": parts.now.statistics.normalization.kind,
    }


def _write_tokenizer(parts: Parts, base: Folder | None, path: Path) -> None:
    """tokenizer.json, and beside it what the folder had that the policy came from, or the least that transformers
    needs to read it."""
    shutil.copyfile(parts.tokenizer.path, path / "tokenizer.json")
    found = [] if base is None else [file for name in TOKENIZER if (file := inside(base.path, name)).is_file()]
    for file in found:
        shutil.copyfile(file, path / file.name)
    if (path / "tokenizer_config.json").exists():
        return
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if parts.tokenizer.tokenizer.token_to_id("<PAD>") is not None:
        special["pad_token"] = "<PAD>"
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(path / "tokenizer_config.json", {**more, "processor_class": "PrismaticProcessor", **special})
    write_json(path / "special_tokens_map.json", special)
