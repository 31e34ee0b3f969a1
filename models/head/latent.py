"""The head that gives the noise with which a frozen flow policy begins (DSRL, arXiv 2506.15799).

    observation ─▶ chunk of the actor in [−1, 1] ─▶ bound · chunk ─▶ base: denoises from there ─▶ actions

Whatever the actor says, the actions are ones that the base can make. The critics judge the noise itself, so no gradient
goes through the base (DSRL-SAC, section 4 of the paper; its variant with a second critic of actions is not here).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, SpecMismatchError
from embodied.protocols import Policy
from embodied.types import ArraySpec, Elements, EnvSpec, Sampling

from .residual import FRONT

KEY = "actor.model.noise_bound"
WIDTH = "actor.model.noise_width"
GREEDY = Sampling(do_sample=False)


class Latent(nn.Module):
    """A chunk holds the noise that a greedy decision of the base reads, or one part of it that is repeated.

    Args:
        base: is asked for its greedy decision.
        bound: b, the largest noise, in standard deviations. While the actor is untrained, drawn noise has a standard
            deviation of about 0.63 · b.
        width: D, numbers that are repeated until they fill the noise, e.g. those of one action of the base; None = all.
    """

    base_size = noise_size = 0  # actor and critics read nothing of the base

    def __init__(self, base: Policy, bound: float = 2.0, width: int | None = None) -> None:
        super().__init__()
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound <= 10:
            raise ConfigError(f"{KEY} is {bound!r}, expected standard deviations above 0 and up to 10", f"set {KEY}=2")
        if width is not None and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
            raise ConfigError(f"{WIDTH} is {width!r}, expected a whole number from 1", f"set {WIDTH}=null: all of it")
        self.base: Any = base
        self._bound, self._width = float(bound), width
        self._shape, self._size = (0, 0), 0

    @property
    def chunk_size(self) -> int:
        return self._width or self._size

    @property
    def action_dim(self) -> int:
        return self._shape[1]

    @property
    def elements(self) -> Elements:
        return Elements((self.chunk_size,))

    @property
    def fields(self) -> Mapping[str, ArraySpec]:
        return {}

    def bind(self, env: EnvSpec, num_action_chunks: int) -> None:
        spec = self.base.spec
        if num_action_chunks > spec.num_action_chunks:
            raise SpecMismatchError(
                f"actor.model.num_action_chunks is {num_action_chunks}, and the base answers with "
                f"{spec.num_action_chunks} actions",
                f"set actor.model.num_action_chunks to {spec.num_action_chunks} or less, or to null",
            )
        declared = spec.noise
        normal = declared.kind == "normal" and declared.greedy <= (declared.shape or (0,))[0] - declared.uniform
        if not declared.greedy or not normal:
            raise SpecMismatchError(
                "the base is no flow policy that begins with normal noise: its greedy decisions read none, and a head "
                "that chooses noise has nothing to choose",
                "set actor.model.head=residual, which changes the actions of any policy",
            )
        self._size = declared.greedy * math.prod(declared.shape[1:])
        if self._width is not None and self._size % self._width:
            raise SpecMismatchError(
                f"{WIDTH} is {self._width}, and the base begins with {self._size} numbers, which is no multiple of it",
                f"set {WIDTH} to the numbers of one action of the base, or to null",
            )
        self._shape = (num_action_chunks, env.action_dim)

    def begin(self, obs: Mapping[str, Tensor], noise: Tensor) -> Mapping[str, Tensor]:
        return {}

    def base_noise(self, chunk: Tensor) -> Tensor:
        """Makes the base's noise [B, *shape] of chunks [B, D]; what a greedy decision does not read is 0."""
        declared = self.base.spec.noise
        found = chunk.new_zeros(len(chunk), math.prod(declared.shape))
        found[:, : self._size] = (chunk * self._bound).repeat(1, self._size // self.chunk_size)
        return found.unflatten(1, declared.shape)

    def given(self, actions: Tensor) -> Tensor:
        """Returns the K actions that are executed of a base's [B, ≥K, A]."""
        return actions[:, : self._shape[0]].float()

    @torch.no_grad()
    def actions(self, obs: Mapping[str, Tensor], chunk: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        told = {name.removeprefix(FRONT): field for name, field in obs.items() if name.startswith(FRONT)}
        seen = {name: field for name, field in obs.items() if not name.startswith(FRONT)}
        return self.given(self.base.act({**seen, **told}, self.base_noise(chunk), GREEDY).fields["actions"])

    def chunk(self, actions: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        raise ConfigError(
            "a demonstration does not say with which noise the base would have made its actions",
            "leave algorithm.replay.demonstrations out, or set actor.model.head=residual",
        )
