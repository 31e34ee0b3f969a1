"""Heads: what a chunk of the actor means. :class:`FromScratch` is that of a policy of its own, without another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from embodied.errors import SpecMismatchError
from embodied.types import ArraySpec, Elements, EnvSpec


class Head(Protocol):
    """What makes actions of the actor's chunks. Implementations are ``torch.nn.Module``s without trained parameters."""

    @property
    def chunk_size(self) -> int:
        """D, the numbers of a chunk; known after :meth:`bind`."""
        ...

    @property
    def action_dim(self) -> int:
        """A, the numbers of an action of the env."""
        ...

    @property
    def base_size(self) -> int:
        """Numbers of the field ``base``; 0 = records have no such field."""
        ...

    @property
    def noise_size(self) -> int:
        """Numbers of noise that :meth:`begin` reads."""
        ...

    @property
    def elements(self) -> Elements:
        """The elements of a chunk that have a log-prob, D of them."""
        ...

    @property
    def fields(self) -> Mapping[str, ArraySpec]:
        """Fields of a decision that are the head's own; ``base`` among them if there is one."""
        ...

    def bind(self, env: EnvSpec, num_action_chunks: int) -> None:
        """Fits to an env. Raises :class:`SpecMismatchError`."""
        ...

    def begin(self, obs: Mapping[str, Tensor], noise: Tensor) -> Mapping[str, Tensor]:
        """Computes :attr:`fields` of B observations, before the actor reads ``base`` of them."""
        ...

    def actions(self, obs: Mapping[str, Tensor], chunk: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        """Makes actions [B, K, A], in the env's units, of chunks [B, D]."""
        ...

    def chunk(self, actions: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        """Makes the chunks [B, D] of which :meth:`actions` makes ``actions`` [B, K, A]. Numbers beyond [−1, 1] are
        actions that no chunk reaches."""
        ...


class FromScratch(nn.Module):
    """A chunk holds the K actions themselves, scaled: −1 is the env's lowest number and 1 its highest."""

    low: Tensor
    high: Tensor
    base_size = noise_size = 0

    def __init__(self) -> None:
        super().__init__()
        for name in ("low", "high"):
            self.register_buffer(name, torch.zeros(0), persistent=False)
        self._shape = (0, 0)

    @property
    def chunk_size(self) -> int:
        return self._shape[0] * self._shape[1]

    @property
    def action_dim(self) -> int:
        return self._shape[1]

    @property
    def elements(self) -> Elements:
        return Elements(self._shape, action_axis=0)

    @property
    def fields(self) -> Mapping[str, ArraySpec]:
        return {}

    def bind(self, env: EnvSpec, num_action_chunks: int) -> None:
        low, high = (torch.tensor(bound, dtype=torch.float32) for bound in (env.action_low, env.action_high))
        if not bool(torch.isfinite(high - low).all()) or bool((high <= low).any()):
            raise SpecMismatchError(
                f"the env takes actions from {list(env.action_low)} to {list(env.action_high)}, and a head from "
                "scratch chooses numbers between two finite bounds",
                "wrap the env so that its actions have bounds (env=gym: env.train.wrappers)",
            )
        self._shape = (num_action_chunks, env.action_dim)
        self.low, self.high = low.to(self.low.device), high.to(self.low.device)

    def begin(self, obs: Mapping[str, Tensor], noise: Tensor) -> Mapping[str, Tensor]:
        return {}

    def actions(self, obs: Mapping[str, Tensor], chunk: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        share = (chunk.unflatten(1, self._shape) + 1) / 2
        return torch.lerp(self.low.expand_as(share), self.high.expand_as(share), share)

    def chunk(self, actions: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        share = (actions - self.low) / (self.high - self.low)
        return (2 * share - 1).flatten(1)
