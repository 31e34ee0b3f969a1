"""A layer of trunk and expert, in which the expert attends to the trunk.

Shapes: B rows, P tokens of the prefix, S of the suffix, d width, n heads of h numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import Angles, Stream
from .recomputed import Recomputed
from .sizes import Sizes


class Memory(NamedTuple):
    """Keys (rotated) and values of a layer, [B, kv heads, P, h]."""

    keys: Tensor
    values: Tensor

    def repeated(self, times: int) -> Memory:
        """Repeats each row ``times`` times, without copies while nothing writes: [B·times, …]."""
        if times == 1:
            return self
        return Memory(*(t[:, None].expand(-1, times, -1, -1, -1).flatten(0, 1) for t in self))


@dataclass(frozen=True, eq=False)
class Pass:
    """What all layers of one pass share."""

    angles: Angles
    allowed: Tensor  # bool [B, 1, queries, keys]
    condition: Tensor | None = None  # [B, d], the embedding of time for adaptive norms
    cross_angles: Angles | None = None  # of queries in cross-attention, counted from 0
    cross_allowed: Tensor | None = None  # bool [B, 1, queries, P]

    def repeated(self, times: int) -> Pass:
        """Repeats each row ``times`` times. Of a pass without a condition."""
        angles = Angles(*(t.repeat_interleave(times, 0) for t in self.angles))
        allowed, crossed = (
            t if t is None else t.repeat_interleave(times, 0) for t in (self.allowed, self.cross_allowed)
        )
        assert allowed is not None
        return Pass(angles, allowed, None, self.cross_angles, crossed)


class JointLayer(Recomputed):
    """One layer of the trunk and the expert's beside it.

    It is called for both, so that sharding, recomputation and compiled blocks have one module to hook: without a memory
    it computes the trunk's tokens and the memory that the expert reads, with a memory the expert's tokens. A trunk that
    is frozen leaves nothing for the backward pass.
    """

    def __init__(self, sizes: Sizes, number: int) -> None:
        super().__init__()
        self.cross = sizes.crosses(number)
        last = number == sizes.layers - 1
        memory = sizes.kv_heads * sizes.head_dim
        self.trunk = Stream(
            sizes, sizes.trunk, sizes.trunk.width, adaptive=False, keys_only=last and not sizes.read_out
        )
        source = memory if self.cross else sizes.expert.width
        self.expert = Stream(sizes, sizes.expert, source, adaptive=sizes.adaptive)

    def compute(self, x: Tensor, shared: Pass, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Computes the trunk's part of the layer, or with ``memory`` the expert's.

        Returns:
            the tokens and the memory. In a layer of cross-attention it is projected by the expert, once for all
            denoising steps. The last layer gives back the trunk's tokens as they came, unless a value head reads them.
        """
        if memory is not None:
            return self._expert(x, shared, memory), memory
        x, memory = self.trunk_pass(x, shared)
        return x, self._reprojected(memory) if self.cross else memory

    def _reprojected(self, memory: Memory) -> Memory:
        keys, values = (t.transpose(1, 2).flatten(2) for t in memory)
        projections = self.expert.self_attn
        return Memory(projections.heads(projections.k_proj(keys)), projections.heads(projections.v_proj(values)))

    def trunk_pass(self, x: Tensor, shared: Pass) -> tuple[Tensor, Memory]:
        """Computes the trunk's tokens, its keys (rotated) and values."""
        normed, gate = self.trunk.input_layernorm(x)
        keys, values = self.trunk.self_attn.memory(normed)
        memory = Memory(shared.angles.rotate(keys), values)
        if hasattr(self.trunk, "mlp"):
            queries = shared.angles.rotate(self.trunk.self_attn.queries(normed))
            x = self.trunk.finish(x, attend(queries, memory, shared.allowed), gate, None)
        return x, memory

    def _expert(self, x: Tensor, shared: Pass, memory: Memory) -> Tensor:
        normed, gate = self.expert.input_layernorm(x, shared.condition)
        queries = self.expert.self_attn.queries(normed)
        if self.cross:
            assert shared.cross_angles is not None
            assert shared.cross_allowed is not None
            attended = attend(shared.cross_angles.rotate(queries), memory, shared.cross_allowed)
        else:
            keys, values = self.expert.self_attn.memory(normed)
            own = Memory(shared.angles.rotate(keys), values)
            whole = Memory(torch.cat([memory.keys, own.keys], 2), torch.cat([memory.values, own.values], 2))
            attended = attend(shared.angles.rotate(queries), whole, shared.allowed)
        return self.expert.finish(x, attended, gate, shared.condition)


def attend(queries: Tensor, memory: Memory, allowed: Tensor) -> Tensor:
    """Attends with grouped queries: [B, n, S, h] → [B, n, S, h]."""
    keys, values = memory
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=allowed, enable_gqa=queries.shape[1] != keys.shape[1]
    )
