"""FLOPs of the network by formula: two for each multiply-add of a matrix product or convolution.

Only the work that a chunk needs is counted. Norms, activations, adapters and the value head (together about 2 % at 7B)
are left out, and so is the extra work of slower paths. Shapes: S tokens, d width, T action tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import N_BINS, NetConfig, TowerConfig


@dataclass(frozen=True)
class Flops:
    """FLOPs of one row's forward pass, by part of the network."""

    vision: int
    projector: int  # projector, with the proprio token
    linears: int  # linear layers of the language model
    attention: int  # both products of the language model's attention
    head: int  # 256 rows at T positions

    @property
    def total(self) -> int:
        return self.vision + self.projector + self.linears + self.attention + self.head


def forward_flops(net: NetConfig, prompt_tokens: int) -> Flops:
    """Counts the FLOPs of one row's forward pass.

    Args:
        prompt_tokens: length of the prompt with BOS and padding.
    """
    length, width = sequence_length(net, prompt_tokens), net.hidden_size
    layer = 4 * width * width + 3 * width * net.intermediate_size
    towers = sum(_tower(tower, net) for tower in (net.featurizer, net.fused_featurizer))
    return Flops(
        vision=net.num_images * towers,
        projector=_projector(net),
        linears=2 * length * layer * net.num_hidden_layers,
        attention=4 * length * length * width * net.num_hidden_layers,
        head=2 * net.action_tokens * N_BINS * width,
    )


def training_flops(net: NetConfig, prompt_tokens: int, lora: bool, checkpointing: bool) -> int:
    """Counts the FLOPs of one row's forward and backward pass.

    The backward pass costs one forward pass for the gradients of activations and, unless the weights are frozen, one
    for the gradients of weights. Recomputation costs one more.
    """
    passes = 2 + (not lora) + checkpointing
    return passes * forward_flops(net, prompt_tokens).total


def sequence_length(net: NetConfig, prompt_tokens: int) -> int:
    """Counts the tokens S of a sequence: prompt, patches, proprio token, placeholders, stop token."""
    return prompt_tokens + net.num_images * net.patches + bool(net.proprio_dim) + net.tail_tokens


def _tower(tower: TowerConfig, net: NetConfig) -> int:
    """FLOPs of one tower; its last block is never run."""
    tokens, width = net.patches + tower.prefix_tokens, tower.width
    block = 2 * tokens * (4 * width * width + 2 * width * tower.mlp_width) + 4 * tokens * tokens * width
    embedding = 2 * net.patches * 3 * net.patch_size**2 * width
    return embedding + (tower.depth - 1) * block


def _projector(net: NetConfig) -> int:
    vision, width = net.vision_width, net.hidden_size
    patches = net.num_images * net.patches * (4 * vision * vision + 4 * vision * width + width * width)
    proprio = net.proprio_dim * width + width * width if net.proprio_dim else 0
    return 2 * (patches + proprio)
