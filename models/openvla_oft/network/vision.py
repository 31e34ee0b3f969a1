"""The two vision towers. Tensors have the checkpoints' names, so loading renames nothing.

Pre-norm transformers with fused qkv (order q, k, v), LayerNorm eps 1e-6 and erf GELU. The feature is the output of the
second-to-last block without a final norm. The later parts of a checkpoint (last block, ``norm``, ``attn_pool``) never
influence an action and are not built. Shapes: B images, N tokens, P patches, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .config import NetConfig, TowerConfig

EPS = 1e-6


class PatchEmbed(nn.Module):
    """Convolution that embeds the patches of an image."""

    def __init__(self, patch_size: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch_size, stride=patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Embeds patches: [B, 3, H, W] → [B, P, D], row by row."""
        return self.proj(pixels).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention of a vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Mlp(nn.Module):
    """MLP of a vision transformer's block."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width)
        self.fc2 = nn.Linear(mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    """Scales each channel by a learnt factor. Checkpoints call it ``scale_factor``, timm ``gamma``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class Block(nn.Module):
    """One block of a vision transformer, with FiLM between attention and MLP as in OFT+ (Perez et al.,
    arXiv 1709.07871).

    Args:
        language_width: width of the modulating embedding; 0 = no modulation.
    """

    def __init__(self, config: TowerConfig, language_width: int = 0) -> None:
        super().__init__()
        if language_width:
            self.scale = nn.Linear(language_width, config.width)
            self.shift = nn.Linear(language_width, config.width)
        self.norm1 = nn.LayerNorm(config.width, eps=EPS)
        self.attn = Attention(config.width, config.heads)
        self.ls1 = LayerScale(config.width) if config.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(config.width, eps=EPS)
        self.mlp = Mlp(config.width, config.mlp_width)
        self.ls2 = LayerScale(config.width) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, language: Tensor | None = None) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        if language is not None:
            x = x * (1 + self.scale(language)).unsqueeze(1) + self.shift(language).unsqueeze(1)
        return x + self.ls2(self.mlp(self.norm2(x)))


class Tower(nn.Module):
    """One vision transformer up to its second-to-last block."""

    def __init__(self, config: TowerConfig, image_size: int, patch_size: int, language_width: int = 0) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.patch_embed = PatchEmbed(patch_size, config.width)
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch_size) ** 2, config.width))
        if config.prefix_tokens:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, config.width))
            self.reg_token = nn.Parameter(torch.zeros(1, config.prefix_tokens - 1, config.width))
        self.blocks = nn.ModuleList(Block(config, language_width) for _ in range(config.depth - 1))

    def forward(self, pixels: Tensor, language: Tensor | None = None) -> Tensor:
        """[B, 3, H, W] normalised pixels, [B, d] for modulated blocks → [B, P, D]."""
        x = self._with_prefix(self.patch_embed(pixels) + self.pos_embed)
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, language, use_reentrant=False)
            else:
                x = block(x, language)
        return x[:, self.config.prefix_tokens :]

    def _with_prefix(self, x: Tensor) -> Tensor:
        """Prepend cls and registers, which carry no position."""
        if not self.config.prefix_tokens:
            return x
        prefix = torch.cat([self.cls_token, self.reg_token], dim=1).to(x.dtype)
        return torch.cat([prefix.expand(x.shape[0], -1, -1), x], dim=1)


class VisionBackbone(nn.Module):
    """Both towers on the same images; features are concatenated along the width."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        sizes = (config.image_size, config.patch_size, config.hidden_size if config.film else 0)
        self.featurizer = Tower(config.featurizer, *sizes)
        self.fused_featurizer = Tower(config.fused_featurizer, *sizes)

    def forward(self, pixels: Tensor, language: Tensor | None = None) -> Tensor:
        """[B, 6·n, H, W] (per image 3 channels normalised for each tower) → [B, n·P, D1 + D2], image by image.

        Args:
            language: [B, d], mean embedding of the instruction; given if and only if the towers have FiLM layers.
        """
        batch = pixels.shape[0]
        images = pixels.unflatten(1, (-1, 6)).flatten(0, 1)  # all cameras go in one call: fewer, larger kernels
        if language is not None:
            language = language.repeat_interleave(images.shape[0] // batch, dim=0)
        towers = (self.featurizer(images[:, :3], language), self.fused_featurizer(images[:, 3:], language))
        features = torch.cat(towers, dim=2)
        return features.unflatten(0, (batch, -1)).flatten(1, 2)
