"""Attention over tokens that are laid end to end, in place of the network's own.

transformers' layers call the function that is registered here (:data:`NAME`). It hands queries, keys and values to the
:class:`Attend` of the present pass, which knows which tokens belong together.

Shapes: T tokens of a pass, H heads, G heads of keys and values, D width of a head, B texts, L longest text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "embodied"


@dataclass(frozen=True)
class Heads:
    """Settings of one layer's attention: scale, window, soft cap."""

    layer: int
    scale: float
    window: int | None  # a token sees itself and this many − 1 before it; None = all before it
    softcap: float | None  # scores become softcap · tanh(score / softcap)


class Attend(Protocol):
    """Interface of a function that computes the attention of one pass."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Computes the weighted values [T, H, D] from query [T, H, D], key and value [T, G, D]."""
        ...


def _registered(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attend: Attend,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Adapts transformers' call: tensors [1, H, T, D] in, [1, T, H, D] out."""
    layer: Any = module.layer_idx
    # autocast leaves float32 where the angles came in
    q, k, v = (part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value))
    return attend(q, k, v, Heads(layer, scaling, sliding_window, softcap)).unsqueeze(0), None


AttentionInterface.register(NAME, _registered)


def weigh(query: Tensor, key: Tensor, value: Tensor, heads: Heads, mask: Tensor | None) -> Tensor:
    """Computes attention: values [B, G, Lk, D] weighed by how well keys [B, G, Lk, D] fit queries [B, H, Lq, D]: [B, H,
    Lq, D].

    Args:
        mask: what is added to the scores, float [B or 1, 1, Lq or 1, Lk]; None = causal, with Lq = Lk.
    """
    copies = query.shape[1] // key.shape[1]
    if copies > 1:
        key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
    if heads.softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=heads.scale
        )
    scores = heads.softcap * torch.tanh(query @ key.transpose(-1, -2) * (heads.scale / heads.softcap))
    mask = causal_mask(query.shape[2], None, query) if mask is None else mask
    return (scores + mask).softmax(dim=-1, dtype=torch.float32).to(value.dtype) @ value


def causal_mask(length: int, window: int | None, like: Tensor) -> Tensor:
    """Returns the causal mask that is added to attention scores: [1, 1, L, L], 0 at what a token sees, −∞ elsewhere."""
    place = torch.arange(length, device=like.device)
    behind = place.unsqueeze(1) - place
    seen = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
    return torch.zeros(length, length, dtype=like.dtype, device=like.device).masked_fill(~seen, -torch.inf)[None, None]


def square(query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
    """Computes causal attention within each of B right-padded texts: [B, H, L, D] → [B, H, L, D].

    What fills up a text lies behind all of its tokens, so no token sees it, and no mask is needed.
    """
    length = query.shape[2]
    inside = heads.window is None or heads.window >= length
    return weigh(query, key, value, heads, None if inside else causal_mask(length, heads.window, query))
