"""The network of a flow policy: one pass of the trunk an observation, one of the expert a denoising step.

Shapes: B rows, n pictures, L tokens of text, P of the prefix, S of the suffix, H actions, D denoising steps, d width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...shared.constants import cached
from .blocks import Angles, make_norm
from .layer import JointLayer, Memory, Pass
from .sizes import Sizes
from .tower import Tower, shuffled


class Inputs(NamedTuple):
    """What the network reads of B observations. Cameras that a layout has a place for and an env lacks are left out:
    nothing could attend to them."""

    pixels: Tensor  # float32 [B, n, 3, h, w] of −1 … 1
    tokens: Tensor  # int64 [B, L]
    token_mask: Tensor  # bool [B, L], False at padding
    state: Tensor  # float32 [B, state width], normalised and padded


class Prefix(NamedTuple):
    """Tokens of the prefix, before the trunk."""

    embeddings: Tensor  # [B, P, d]
    present: Tensor  # bool [B, P], False at padding


@dataclass(frozen=True, eq=False)
class Context:
    """What the trunk makes of B observations, for any number of denoising steps."""

    present: Tensor  # bool [B, P]
    memories: tuple[Memory, ...]  # of each layer, as the expert reads them
    state: Tensor  # float32 [B, state width]
    hidden: Tensor | None  # [B, P, d], the trunk's last hidden state after its norm, for a value head
    suffix: Pass  # positions and masks of the suffix, the same in each denoising step

    def repeated(self, times: int) -> Context:
        """Repeats each row ``times`` times, for as many denoising steps of one record in one pass."""
        if times == 1:
            return self
        present, state = (t.repeat_interleave(times, 0) for t in (self.present, self.state))
        memories = tuple(memory.repeated(times) for memory in self.memories)
        return Context(present, memories, state, None, self.suffix.repeated(times))


class FlowVLA(nn.Module):
    """Vision tower, trunk, expert and their ends."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        trunk, expert = sizes.trunk.width, sizes.expert.width
        self.vision = Tower(sizes.tower)
        self.projector = nn.Linear(sizes.tower.width * sizes.shuffle**2, trunk, bias=sizes.gemma)
        self.embed_tokens = nn.Embedding(sizes.vocab, trunk)
        self.layers = nn.ModuleList(JointLayer(sizes, number) for number in range(sizes.layers))
        if sizes.read_out:
            self.trunk_norm = make_norm(sizes, trunk, adaptive=False)
        self.expert_norm = make_norm(sizes, expert, sizes.adaptive)
        if sizes.state_place != "text":
            self.state_proj = nn.Linear(sizes.state_width, trunk if sizes.state_place == "prefix" else expert)
        self.action_in_proj = nn.Linear(sizes.action_width, expert)
        self.action_out_proj = nn.Linear(expert, sizes.action_width)
        self.time_mlp_in = nn.Linear(expert if sizes.adaptive else 2 * expert, expert)
        self.time_mlp_out = nn.Linear(expert, expert)

    # -- once an observation -----------------------------------------------------------------------------------------

    def embed(self, inputs: Inputs) -> Prefix:
        """Embeds pictures, text, and the state where it belongs to the prefix."""
        count = inputs.pixels.shape[1]
        features = self.projector(shuffled(self.vision(inputs.pixels.flatten(0, 1)), self.sizes.shuffle))
        pictures = features.unflatten(0, (-1, count)).flatten(1, 2)
        scale = math.sqrt(self.sizes.trunk.width)
        parts = [pictures if self.sizes.gemma else pictures * scale, self.embed_tokens(inputs.tokens) * scale]
        present = [parts[0].new_ones(parts[0].shape[:2], dtype=torch.bool), inputs.token_mask]
        if self.sizes.state_place == "prefix":
            parts.append(self.state_proj(inputs.state)[:, None])
            present.append(present[0][:, :1])
        return Prefix(torch.cat([p.to(parts[1].dtype) for p in parts], 1), torch.cat(present, 1))

    def read(self, inputs: Inputs) -> Context:
        """Makes the trunk's pass over B observations."""
        prefix = self.embed(inputs)
        shared = self.prefix_pass(prefix.present)
        x, memories = prefix.embeddings, []
        for layer in self.layers:
            x, memory = layer(x, shared)
            memories.append(memory)
        hidden = self.trunk_norm(x)[0] if self.sizes.read_out else None
        return Context(prefix.present, tuple(memories), inputs.state, hidden, self.suffix_pass(prefix.present))

    def prefix_pass(self, present: Tensor) -> Pass:
        """Positions and mask of the prefix: everything sees pictures and text, and only the state sees the state."""
        allowed = present[:, None, :].expand(-1, present.shape[1], -1)
        if self.sizes.state_place == "prefix":
            last = torch.arange(present.shape[1], device=present.device) == present.shape[1] - 1
            allowed = allowed & (~last[None] | last[:, None])
        return Pass(Angles.of(present.long().cumsum(1) - 1, self.sizes.head_dim), allowed[:, None])

    # -- once a denoising step ---------------------------------------------------------------------------------------

    def velocity(self, context: Context, x: Tensor, time: Tensor) -> Tensor:
        """Computes the velocity, noise minus actions.

        Args:
            context: of B observations, see :meth:`read`.
            x: float32 [B, H, action width], or [B, D, H, action width] for D steps in one pass.
            time: float32 [B] or [B, D]; 1 is noise.

        Returns:
            float32, of the shape of ``x``.
        """
        return self.action_out_proj(self.expert_tokens(context, x, time)).float()

    def expert_tokens(self, context: Context, x: Tensor, time: Tensor) -> Tensor:
        """Computes the expert's last tokens of the actions, [B, H, d] or [B, D, H, d]. See :meth:`velocity`."""
        if x.ndim == 4:
            flat = self.expert_tokens(context.repeated(x.shape[1]), x.flatten(0, 1), time.flatten())
            return flat.unflatten(0, x.shape[:2])
        tokens, condition = self._suffix(context.state, x, time)
        shared = context.suffix if condition is None else replace(context.suffix, condition=condition)
        for layer, memory in zip(self.layers, context.memories, strict=True):
            tokens, _ = layer(tokens, shared, memory)
        return self.expert_norm(tokens[:, -x.shape[1] :], condition)[0]

    def _suffix(self, state: Tensor, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, S, d] of the suffix, and the embedding of time for adaptive norms."""
        actions = self.action_in_proj(x)
        times = self._time(time).to(actions.dtype)
        if self.sizes.adaptive:
            return actions, F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(times))))
        both = torch.cat([actions, times[:, None].expand_as(actions)], dim=-1)
        tokens = self.time_mlp_out(F.silu(self.time_mlp_in(both)))
        if self.sizes.state_place == "suffix":
            tokens = torch.cat([self.state_proj(state)[:, None].to(tokens.dtype), tokens], dim=1)
        return tokens, None

    def _time(self, time: Tensor) -> Tensor:
        """Embeds times [B] as sines and cosines, float64 [B, d]: the shortest period is a 250th, so that float32 would
        be seen in the actions."""
        sizes = self.sizes
        phase = frequencies(sizes.expert.width // 2, sizes.min_period, sizes.max_period, time.device) * time[:, None]
        return torch.cat([phase.sin(), phase.cos()], dim=-1)

    def suffix_pass(self, present: Tensor) -> Pass:
        """Positions and masks of the suffix: π's actions see each other, SmolVLA's those before them; π0's state sees
        no action."""
        state_first = self.sizes.state_place == "suffix"
        places = torch.arange(self.sizes.horizon + state_first, device=present.device)[None]
        length = places.shape[1]
        own = torch.ones(length, length, dtype=torch.bool, device=present.device)
        if self.sizes.layout == "smolvla":
            own = places <= places.T
        elif state_first:
            own = (places == 0) | (places.T > 0)
        to_prefix = present[:, None, None].expand(-1, 1, length, -1)
        allowed = torch.cat([to_prefix, own.expand(present.shape[0], 1, -1, -1)], dim=-1)
        angles = Angles.of(present.sum(1, keepdim=True) + places, self.sizes.head_dim)
        if not self.sizes.cross_every:
            return Pass(angles, allowed)
        return Pass(angles, allowed, None, Angles.of(places, self.sizes.head_dim), to_prefix)


@cached
def frequencies(count: int, least: float, most: float, device: torch.device) -> Tensor:
    """Computes the frequencies of the embedding of time, whose periods run from ``least`` to ``most``: float64
    [1, count]."""
    with torch.inference_mode(False):
        share = torch.linspace(0, 1, count, dtype=torch.float64, device=device)
        period = least * (most / least) ** share
        return (1.0 / period * 2 * math.pi)[None]
