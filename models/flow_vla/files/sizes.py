"""Reads the sizes of a network from its tensors' shapes; keys say what no tensor does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from embodied.errors import CheckpointError

from ..network.sizes import Sizes, StreamSizes, TowerSizes

Shapes = Mapping[str, tuple[int, ...]]
SMOLVLM_HEAD, SIGLIP_HEAD = 64, 72  # numbers of a head, of towers and of SmolVLM's text layers as released
SMOLVLM_EPS = 1e-5


def read_sizes(layout: str, shapes: Shapes, said: Mapping[str, Any], vlm: Mapping[str, Any]) -> Sizes:
    """Reads sizes from shapes by the network's names.

    Args:
        said: ``horizon`` and ``image_size``; ``vision_heads``, ``head_dim``, ``cross_every``, ``min_period`` and
            ``max_period`` where they are known.
        vlm: config.json of the VLM that a SmolVLA folder names; empty if it is not at hand.

    Raises:
        CheckpointError: a tensor that tells a size is missing, or sizes do not fit each other.
    """
    smol = layout == "smolvla"
    text, eyes = vlm.get("text_config", {}), vlm.get("vision_config", {})
    inner = _shape(shapes, "layers.0.expert.self_attn.q_proj.weight")[0]
    memory = _shape(shapes, "layers.0.trunk.self_attn.k_proj.weight")[0]
    head_dim = said.get("head_dim") or (text.get("head_dim", SMOLVLM_HEAD) if smol else memory)
    trunk = _stream(shapes, "layers.0.trunk.")
    tower = _tower(
        shapes, said.get("vision_heads") or eyes.get("num_attention_heads"), SMOLVLM_HEAD if smol else SIGLIP_HEAD
    )
    if inner % head_dim or memory % head_dim:
        raise CheckpointError(
            f"heads of {head_dim} numbers do not divide queries of {inner} and keys of {memory}",
            "set actor.model.head_dim to the size of a head of the text layers",
        )
    size, token = said.get("image_size") or tower.image_size, tower.patch * _shuffle(shapes, tower)
    if size % token:
        raise CheckpointError(
            f"pictures of {size} pixels are not filled by tokens of {token}",
            f"set config.json's size of pictures to a multiple of {token}, as it was in the training",
        )
    return Sizes(
        layout, tower, trunk, _stream(shapes, "layers.0.expert."), _layers(shapes),
        inner // head_dim, memory // head_dim, head_dim, _shape(shapes, "embed_tokens.weight")[0],
        said["horizon"], size, _shuffle(shapes, tower),
        text.get("rms_norm_eps", SMOLVLM_EPS) if smol else 1e-6, said.get("cross_every", 0),
        _state_width(shapes), _shape(shapes, "action_in_proj.weight")[1],
        said.get("min_period", 4e-3), said.get("max_period", 4.0),
    )  # fmt: skip


def _shape(shapes: Shapes, name: str) -> tuple[int, ...]:
    if name not in shapes:
        raise CheckpointError(f"the folder lacks {name} (as the network calls it)", "use a folder with all tensors")
    return shapes[name]


def _stream(shapes: Shapes, prefix: str) -> StreamSizes:
    mlp, width = _shape(shapes, f"{prefix}mlp.gate_proj.weight")
    return StreamSizes(width, mlp)


def _layers(shapes: Shapes) -> int:
    counts = {
        stream: 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("layers.") and stream in name)
        for stream in (".trunk.", ".expert.")
    }
    if len(set(counts.values())) > 1:
        raise CheckpointError(
            f"the trunk has {counts['.trunk.']} layers and the expert {counts['.expert.']}",
            "use a folder whose expert has a layer beside each of the trunk's (num_expert_layers -1 or 0)",
        )
    return counts[".trunk."]


def _tower(shapes: Shapes, heads: int | None, head: int) -> TowerSizes:
    width, _, patch, _ = _shape(shapes, "vision.embeddings.patch_embedding.weight")
    mlp = _shape(shapes, "vision.encoder.layers.0.mlp.fc1.weight")[0]
    layers = 1 + max(int(name.split(".")[3]) for name in shapes if name.startswith("vision.encoder.layers."))
    side = math.isqrt(_shape(shapes, "vision.embeddings.position_embedding.weight")[0])
    heads = heads or width // head
    if not heads or width % heads:
        raise CheckpointError(
            f"the vision tower is {width} wide, and its number of heads is not known",
            "set actor.model.vision_heads; no file of this layout says it",
        )
    return TowerSizes(width, mlp, layers, heads, patch, side)


def _shuffle(shapes: Shapes, tower: TowerSizes) -> int:
    return math.isqrt(_shape(shapes, "projector.weight")[1] // tower.width)


def _state_width(shapes: Shapes) -> int:
    return shapes["state_proj.weight"][1] if "state_proj.weight" in shapes else 32
