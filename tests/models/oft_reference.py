"""OpenVLA-OFT written down a second time, as plainly as possible: one sequence at a time, loops over layers, an
explicit mask and explicit rotations, straight from tensors under the released names. It shares no code with the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Sizes:
    vision_heads: tuple[int, int]
    text_heads: int
    causal: bool = False
    stop_token: bool = True
    slots: int = 56
    rope_theta: float = 1e4
    eps: float = 1e-6


def hidden_states(
    weights: dict[str, Tensor], sizes: Sizes, pixels: Tensor, ids: Tensor, proprio: Tensor | None = None,
    tokens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """[T, d] at the read-out positions. ``pixels`` [6·n, H, W]; ``ids`` [L] end in 29871; ``proprio`` [S]; ``tokens``
    [T] stand where the zero vectors do if actions are decoded one after the other."""
    table = weights["language_model.model.embed_tokens.weight"]
    stop = table[2:3] if sizes.stop_token else table[:0]
    film = "vision_backbone.featurizer.blocks.0.scale.weight" in weights
    instruction = torch.cat([table[ids], stop]).mean(0) if film else None
    images = [projected(weights, sizes, image, instruction) for image in pixels.split(6)]
    state = [] if proprio is None else [mlp(weights, "proprio_projector", proprio[None], 2)]
    slots = torch.zeros(sizes.slots, table.shape[1]) if tokens is None else table[tokens]
    x = torch.cat([table[ids[:1]], *images, *state, table[ids[1:]], slots, stop])
    last = len(x) - len(stop) - len(slots) - 1
    return llama(weights, sizes, x)[last : last + sizes.slots]


def projected(weights, sizes: Sizes, image: Tensor, instruction: Tensor | None) -> Tensor:
    names = ("featurizer", "fused_featurizer")
    towers = [
        tower(weights, f"vision_backbone.{name}", heads, part, instruction)
        for name, heads, part in zip(names, sizes.vision_heads, image.split(3), strict=True)
    ]
    return mlp(weights, "projector", torch.cat(towers, 1), 3)


def mlp(weights, name: str, x: Tensor, layers: int) -> Tensor:
    for number in range(1, layers + 1):
        x = x @ weights[f"{name}.fc{number}.weight"].T + weights[f"{name}.fc{number}.bias"]
        x = gelu(x) if number < layers else x
    return x


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def tower(weights, name: str, heads: int, image: Tensor, instruction: Tensor | None) -> Tensor:
    kernel = weights[f"{name}.patch_embed.proj.weight"]
    side = kernel.shape[-1]
    patches = image.unfold(1, side, side).unfold(2, side, side).permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
    x = patches @ kernel.flatten(1).T + weights[f"{name}.patch_embed.proj.bias"] + weights[f"{name}.pos_embed"][0]
    prefix = [weights[key][0] for part in ("cls_token", "reg_token") if (key := f"{name}.{part}") in weights]
    x = torch.cat([*prefix, x])
    blocks = 1 + max(int(key.split(".")[3]) for key in weights if key.startswith(f"{name}.blocks."))
    for number in range(blocks - 1):  # the second-to-last block's output is the feature
        x = block(weights, f"{name}.blocks.{number}", heads, x, instruction)
    return x[sum(map(len, prefix)) :]


def block(weights, name: str, heads: int, x: Tensor, instruction: Tensor | None) -> Tensor:
    def linear(layer: str, y: Tensor) -> Tensor:
        return y @ weights[f"{name}.{layer}.weight"].T + weights[f"{name}.{layer}.bias"]

    def norm(layer: str, y: Tensor) -> Tensor:
        centred = y - y.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * weights[f"{name}.{layer}.weight"] + weights[f"{name}.{layer}.bias"]

    def scaled(layer: str, y: Tensor) -> Tensor:
        return y * weights.get(f"{name}.{layer}.scale_factor", torch.ones(()))

    query, key, value = linear("attn.qkv", norm("norm1", x)).chunk(3, -1)
    x = x + scaled("ls1", linear("attn.proj", attention(query, key, value, heads, None)))
    if instruction is not None:
        x = x * (1 + linear("scale", instruction)) + linear("shift", instruction)
    return x + scaled("ls2", linear("mlp.fc2", gelu(linear("mlp.fc1", norm("norm2", x)))))


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, visible: Tensor | None) -> Tensor:
    out = []
    for q, k, v in zip(query.chunk(heads, -1), key.chunk(heads, -1), value.chunk(heads, -1), strict=True):
        scores = q @ k.T / math.sqrt(q.shape[-1])
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        out.append(scores.softmax(-1) @ v)
    return torch.cat(out, -1)


def llama(weights, sizes: Sizes, x: Tensor) -> Tensor:
    length, prefix = len(x), "language_model.model"
    visible = torch.ones(length, length, dtype=torch.bool).tril() if sizes.causal else None
    layers = 1 + max(int(key.split(".")[3]) for key in weights if key.startswith(f"{prefix}.layers."))

    def norm(name: str, y: Tensor) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + sizes.eps).sqrt() * weights[f"{prefix}.{name}.weight"]

    for number in range(layers):

        def linear(name: str, y: Tensor, layer: str = f"layers.{number}") -> Tensor:
            return y @ weights[f"{prefix}.{layer}.{name}.weight"].T

        y = norm(f"layers.{number}.input_layernorm", x)
        query, key = (rotated(linear(f"self_attn.{n}_proj", y), sizes) for n in "qk")
        mixed = attention(query, key, linear("self_attn.v_proj", y), sizes.text_heads, visible)
        x = x + linear("self_attn.o_proj", mixed)
        y = norm(f"layers.{number}.post_attention_layernorm", x)
        gate = linear("mlp.gate_proj", y)
        x = x + linear("mlp.down_proj", gate * torch.sigmoid(gate) * linear("mlp.up_proj", y))
    return norm("norm", x)


def rotated(x: Tensor, sizes: Sizes) -> Tensor:
    """Pairs (i, i + half) of each head turn by position · theta^(−2i/width)."""
    heads = x.unflatten(-1, (sizes.text_heads, -1))
    half = heads.shape[-1] // 2
    angles = torch.arange(len(x))[:, None] * sizes.rope_theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).flatten(1)


def unnormalised(values: list[float], block: dict[str, list], kind: str) -> list[float]:
    """One action in [−1, 1] → units of the data, by an entry of dataset_statistics.json."""
    low, high = ("min", "max") if kind == "bounds" else ("q01", "q99")
    mask = block.get("mask", [True] * len(values))
    rows = zip(values, block[low], block[high], mask, strict=True)
    return [(x + 1) / 2 * (above - below + 1e-8) + below if scaled else x for x, below, above, scaled in rows]


def normalised_state(values: list[float], block: dict[str, list], kind: str) -> list[float]:
    """One robot state → [−1, 1]: scaled where masked in, then all of it clipped."""
    low, high = ("min", "max") if kind == "bounds" else ("q01", "q99")
    mask = block.get("mask", [True] * len(values))
    rows = zip(values, block[low], block[high], mask, strict=True)
    found = [2 * (x - below) / (above - below + 1e-8) - 1 if scaled else x for x, below, above, scaled in rows]
    return [min(max(x, -1.0), 1.0) for x in found]
