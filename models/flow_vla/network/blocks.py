"""What trunk and expert are made of: norms, rotary positions, gated feed-forward layers, projections.

Shapes: B rows, S tokens, d width, n heads of h numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sizes import Sizes, StreamSizes

ROTARY_BASE = 10_000.0  # SmolVLA's too, whatever its VLM's configuration says


class Norm(nn.Module):
    """RMS norm. Gemma's weights are counted from 1. With a gate it is always open."""

    def __init__(self, width: int, eps: float, gemma: bool) -> None:
        super().__init__()
        self.eps, self.gemma = eps, gemma
        self.weight = nn.Parameter(torch.zeros(width) if gemma else torch.ones(width))

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        scale = 1 + self.weight.float() if self.gemma else self.weight.float()
        return (_normed(x, self.eps) * scale).to(x.dtype), None


class AdaptiveNorm(nn.Module):
    """RMS norm whose scale, shift and gate are made from the embedding of time (adaRMS)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        scale, shift, gate = self.dense(condition)[:, None].chunk(3, dim=-1)
        return (_normed(x, self.eps) * (1 + scale.float()) + shift.float()).to(x.dtype), gate.to(x.dtype)


def _normed(x: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def added(x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
    """Adds what a layer computed, through its gate if there is one."""
    return x + change if gate is None else x + change * gate


class Angles(NamedTuple):
    """Cosines and sines of rotary positions, float32 [B, 1, S, h / 2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, positions: Tensor, head_dim: int) -> Angles:
        """Computes them for positions [B, S]."""
        exponents = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32) * (2.0 / head_dim)
        radians = positions[:, None, :, None].float() / ROTARY_BASE**exponents
        return cls(radians.cos(), radians.sin())

    def rotate(self, x: Tensor) -> Tensor:
        """Rotates queries or keys [B, n, S, h]."""
        first, second = x.float().chunk(2, dim=-1)
        turned = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return torch.cat(turned, dim=-1).to(x.dtype)


class Projections(nn.Module):
    """Queries, keys, values and what leads out of attention. Those that nothing reads are not built."""

    def __init__(self, sizes: Sizes, width: int, source: int, keys_only: bool = False) -> None:
        super().__init__()
        self.head_dim = sizes.head_dim
        inner, memory = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        if not keys_only:
            self.q_proj, self.o_proj = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(source, memory, bias=False), nn.Linear(source, memory, bias=False)

    def queries(self, x: Tensor) -> Tensor:
        """Returns queries [B, n, S, h]."""
        return self.heads(self.q_proj(x))

    def memory(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys, not rotated, and values [B, n, S, h]."""
        return self.heads(self.k_proj(x)), self.heads(self.v_proj(x))

    def out(self, x: Tensor) -> Tensor:
        """Leads out of attention: [B, n, S, h] → [B, S, d]."""
        return self.o_proj(x.transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        """Splits into heads: [B, S, n·h] → [B, n, S, h]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedMLP(nn.Module):
    """Feed-forward layer with a gate: Gemma's GELU or Llama's SiLU."""

    def __init__(self, sizes: StreamSizes, gemma: bool) -> None:
        super().__init__()
        self.gemma = gemma
        self.gate_proj, self.up_proj = (nn.Linear(sizes.width, sizes.mlp, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(sizes.mlp, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        gate = F.gelu(gate, approximate="tanh") if self.gemma else F.silu(gate)
        return self.down_proj(gate * self.up_proj(x))


class Stream(nn.Module):
    """The trunk's or the expert's part of a layer. ``keys_only``: of the trunk's last layer nothing else is read."""

    def __init__(self, sizes: Sizes, own: StreamSizes, source: int, adaptive: bool, keys_only: bool = False) -> None:
        super().__init__()
        self.input_layernorm = make_norm(sizes, own.width, adaptive)
        self.self_attn = Projections(sizes, own.width, source, keys_only)
        if not keys_only:
            self.post_attention_layernorm = make_norm(sizes, own.width, adaptive)
            self.mlp = GatedMLP(own, sizes.gemma)

    def finish(self, x: Tensor, attended: Tensor, gate: Tensor | None, condition: Tensor | None) -> Tensor:
        """Computes what follows attention: [B, S, d] → [B, S, d]."""
        x = added(x, self.self_attn.out(attended), gate)
        normed, gate = self.post_attention_layernorm(x, condition)
        return added(x, self.mlp(normed), gate)


def make_norm(sizes: Sizes, width: int, adaptive: bool) -> Norm | AdaptiveNorm:
    """Makes a norm of the layout's kind."""
    return AdaptiveNorm(width, sizes.norm_eps) if adaptive else Norm(width, sizes.norm_eps, sizes.gemma)
