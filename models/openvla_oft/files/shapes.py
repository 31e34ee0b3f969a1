"""Sizes of a network from the shapes of its tensors: config.json only names the towers and half of the language model.

Shapes do not show the number of attention heads. For the towers it is known at the released widths; for the language
model it is in text_config.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from embodied.errors import CheckpointError

from ...shared.weights.misfit import fix_of_names
from ..network.config import N_BINS, OPENVLA_7B, NetConfig, TowerConfig

Shapes = Mapping[str, Sequence[int]]
TOWERS = ("featurizer", "fused_featurizer")
EMBEDDING, HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"
LLAMA_HEADS = 32  # LlamaConfig's default, which the released text_config relies on
PADDED_BY = 64  # rows of padding behind the vocabulary, unless config.json says otherwise


@dataclass(frozen=True)
class TowerHints:
    """Sizes of a vision tower that shapes do not show. None = its width is the released one; no block is missing."""

    heads: int | None = None
    depth: int | None = None  # blocks of the full tower: some files lack the last one, which is never run


NO_HINTS = (TowerHints(), TowerHints())


def sizes_of(shapes: Shapes, config: Mapping[str, Any], hints: Sequence[TowerHints] = NO_HINTS) -> NetConfig:
    """Determines the network's sizes from tensors' shapes. Conventions that no file records (attention, stop token,
    images) are the defaults.

    Args:
        shapes: shape of every tensor, under released names.
        config: config.json.
        hints: one for each tower.

    Raises:
        CheckpointError: a required tensor is missing, or this network cannot have such sizes.
    """
    text = config.get("text_config") or {}
    towers: dict[str, Any] = {
        name: _tower(shapes, name, hint, getattr(OPENVLA_7B, name)) for name, hint in zip(TOWERS, hints, strict=True)
    }
    rows, hidden = _shape(shapes, EMBEDDING)
    net = replace(
        OPENVLA_7B,
        **towers,
        image_size=_image_size(shapes, config),
        patch_size=_shape(shapes, "vision_backbone.featurizer.patch_embed.proj.weight")[2],
        vocab_size=rows - config.get("pad_to_multiple_of", PADDED_BY),
        hidden_size=hidden,
        intermediate_size=_shape(shapes, "language_model.model.layers.0.mlp.gate_proj.weight")[0],
        num_hidden_layers=count(shapes, r"language_model\.model\.layers\.(\d+)\."),
        num_attention_heads=text.get("num_attention_heads", LLAMA_HEADS),
        proprio_dim=shapes["proprio_projector.fc1.weight"][1] if "proprio_projector.fc1.weight" in shapes else 0,
        film="vision_backbone.featurizer.blocks.0.scale.weight" in shapes,
        **{name: text[name] for name in ("rms_norm_eps", "rope_theta") if name in text},
    )
    _check(net, shapes, config)
    return net


def _check(net: NetConfig, shapes: Shapes, config: Mapping[str, Any]) -> None:
    text = config.get("text_config") or {}
    keys = _shape(shapes, "language_model.model.layers.0.self_attn.k_proj.weight")[0]
    said = {
        name: (text[name], getattr(net, name))
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers")
        if text.get(name, getattr(net, name)) != getattr(net, name)
    }
    problems = [f"text_config says {name} {a}, the tensors {b}" for name, (a, b) in said.items()]
    if (bins := config.get("n_action_bins", N_BINS)) != N_BINS:
        problems.append(f"config.json says n_action_bins {bins}, supported: {N_BINS}")
    if keys != net.hidden_size:
        problems.append(f"keys are {keys} wide and queries {net.hidden_size}: grouped attention is not Llama 2's")
    if net.padded_vocab != (rows := shapes[EMBEDDING][0]):
        problems.append(f"the embedding has {rows} rows, expected {net.padded_vocab} for {net.vocab_size} ids")
    if problems:
        raise CheckpointError("; ".join(problems), "use an OpenVLA or OpenVLA-OFT folder whose files belong together")


def _tower(shapes: Shapes, name: str, hint: TowerHints, released: TowerConfig) -> TowerConfig:
    prefix = f"vision_backbone.{name}"
    width, mlp_width = _shape(shapes, f"{prefix}.pos_embed")[2], _shape(shapes, f"{prefix}.blocks.0.mlp.fc1.weight")[0]
    if hint.heads is None and width != released.width:
        raise CheckpointError(
            f"{prefix} is {width} wide (released: {released.width}), and no file says how many attention heads it has",
            "set actor.model.vision_num_attention_heads, one number or one for each tower",
        )
    if hint.depth is None and f"{prefix}.norm.weight" not in shapes:
        raise CheckpointError(
            f"{prefix} has no norm behind its blocks: perhaps the last block, which is never run, was left out as well",
            "set actor.model.vision_num_layers to the number of blocks with that one, or to two numbers",
        )
    registers = shapes.get(f"{prefix}.reg_token")
    return TowerConfig(
        width=width,
        depth=hint.depth or count(shapes, rf"vision_backbone\.{name}\.blocks\.(\d+)\."),
        heads=hint.heads or released.heads,
        mlp_width=mlp_width,
        prefix_tokens=(f"{prefix}.cls_token" in shapes) + (registers[1] if registers else 0),
        layer_scale=f"{prefix}.blocks.0.ls1.scale_factor" in shapes,
    )


def _image_size(shapes: Shapes, config: Mapping[str, Any]) -> int:
    patch = _shape(shapes, "vision_backbone.featurizer.patch_embed.proj.weight")[2]
    patches = _shape(shapes, "vision_backbone.featurizer.pos_embed")[1]
    size = patch * math.isqrt(patches)
    said = list(config.get("image_sizes") or [size])
    if size**2 != patch**2 * patches or set(said) != {size}:
        raise CheckpointError(
            f"config.json says image_sizes {said}, {patches} positions at {patch} px a patch mean {size} px",
            "use an OpenVLA or OpenVLA-OFT folder whose files belong together",
        )
    return size


def count(shapes: Shapes, pattern: str) -> int:
    """Counts layers: 1 + the highest index that ``pattern`` finds in the names."""
    return 1 + max((int(found[1]) for name in shapes if (found := re.match(pattern, name))), default=-1)


def _shape(shapes: Shapes, name: str) -> Sequence[int]:
    if name not in shapes:
        raise CheckpointError(
            f"there is no tensor {name} among {len(shapes)}: another architecture, or the tensors bear other names",
            f"set actor.model.model_path to an OpenVLA or OpenVLA-OFT folder; or {fix_of_names([name], list(shapes))}",
        )
    return shapes[name]
