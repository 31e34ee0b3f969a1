"""SigLIP's vision tower, as PaliGemma and SmolVLM have it.

Shapes: B pictures, P patches, d width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .recomputed import Recomputed
from .sizes import TowerSizes

EPS = 1e-6


class TowerAttention(nn.Module):
    """Attention of all patches to all."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TowerMLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, mlp), nn.Linear(mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class TowerLayer(Recomputed):
    """One layer of the tower."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = (nn.LayerNorm(sizes.width, eps=EPS) for _ in range(2))
        self.self_attn = TowerAttention(sizes.width, sizes.heads)
        self.mlp = TowerMLP(sizes.width, sizes.mlp)

    def compute(self, x: Tensor) -> Tensor:
        """Computes the layer: [B, P, d] → [B, P, d]."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Embeddings(nn.Module):
    """Patches of a picture with learned positions."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.side = sizes.side
        self.patch_embedding = nn.Conv2d(3, sizes.width, sizes.patch, sizes.patch)
        self.position_embedding = nn.Embedding(sizes.side**2, sizes.width)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embedding(pixels)
        rows, columns = (self._places(length, pixels.device) for length in patches.shape[-2:])
        places = (rows[:, None] * self.side + columns[None]).flatten()
        # the order in memory stays through all layers, and norms would copy what is transposed
        return patches.flatten(2).transpose(1, 2).contiguous() + self.position_embedding(places)

    def _places(self, length: int, device: torch.device) -> Tensor:
        """Positions of ``length`` patches, spread over all that were learned. In whole numbers: as fractions they fall
        one too low in some versions of transformers."""
        return torch.arange(length, device=device) * self.side // length


class Encoder(nn.Module):
    """The tower's layers."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TowerLayer(sizes) for _ in range(sizes.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tower(nn.Module):
    """Pictures, float [B, 3, h, w] of −1 … 1, → features [B, P, d]."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes)
        self.encoder = Encoder(sizes)
        self.post_layernorm = nn.LayerNorm(sizes.width, eps=EPS)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.post_layernorm(self.encoder(self.embeddings(pixels)))


def shuffled(features: Tensor, scale: int) -> Tensor:
    """Joins squares of ``scale`` × ``scale`` patches: [B, P, d] → [B, P / scale², d·scale²] (SmolVLM's pixel
    shuffle)."""
    if scale == 1:
        return features
    side = round(features.shape[1] ** 0.5)
    squares = features.unflatten(1, (side // scale, scale, side // scale, scale))
    return squares.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
