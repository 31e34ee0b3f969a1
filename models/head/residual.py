"""The head that changes the chunk of a frozen policy a little (residual reinforcement learning, arXiv 1812.03201).

    observation ─▶ base: greedy chunk ─▶ base + scale · (range / 2) · chunk of the actor, within the env's limits

A chunk of zeros is no change, to the bit. Actor and critics read the base's chunk, so a record keeps it (``base``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, SpecMismatchError
from embodied.protocols import BASE, Policy
from embodied.types import ArraySpec, Elements, EnvSpec, Sampling

FRONT = "base."
"""Stands before the names of the fields that the base makes of instructions."""
ACTIONS = "base_actions"
"""Field beside :attr:`Residual.fields`, not recorded: the base's actions in the env's units, to the bit."""
KEY = "actor.model.residual_scale"
GREEDY = Sampling(do_sample=False)


class Residual(nn.Module):
    """A chunk holds a change for each of K actions, of the dimensions whose scale is not 0.

    Args:
        base: is asked for its greedy decision, also while the actor explores.
        scale: the largest change, in halves of the env's range: one number, or one for each dimension; 0 = the
            dimension stays the base's.
    """

    low: Tensor
    high: Tensor
    limit: Tensor
    where: Tensor

    def __init__(self, base: Policy, scale: float | Sequence[float]) -> None:
        super().__init__()
        self.base: Any = base
        self._scale = scales_of(scale)
        for name in ("low", "high", "limit", "where"):
            self.register_buffer(name, torch.zeros(0), persistent=False)
        self._shape = (0, 0)

    @property
    def chunk_size(self) -> int:
        return self._shape[0] * len(self.where)

    @property
    def action_dim(self) -> int:
        return self._shape[1]

    @property
    def base_size(self) -> int:
        return self._shape[0] * self._shape[1]

    @property
    def noise_size(self) -> int:
        """Numbers that a greedy decision of the base reads."""
        declared = self.base.spec.noise
        return declared.greedy * math.prod(declared.shape[1:])

    @property
    def elements(self) -> Elements:
        return Elements((self._shape[0], len(self.where)), action_axis=0)

    @property
    def fields(self) -> Mapping[str, ArraySpec]:
        return {BASE: ArraySpec((self.base_size,), "float32")}

    def bind(self, env: EnvSpec, num_action_chunks: int) -> None:
        answered = self.base.spec.num_action_chunks
        if num_action_chunks > answered:
            raise SpecMismatchError(
                f"actor.model.num_action_chunks is {num_action_chunks}, and the base answers with {answered} actions",
                f"set actor.model.num_action_chunks to {answered} or less, or to null",
            )
        count = env.action_dim
        scale = list(self._scale) * count if len(self._scale) == 1 else list(self._scale)
        if len(scale) != count:
            raise SpecMismatchError(
                f"{KEY} has {len(scale)} numbers, and the env takes actions of {count}", f"give {count} numbers, or one"
            )
        bounds = [*zip(env.action_low, env.action_high, strict=True)]
        known = [math.isfinite(high - low) and low < high for low, high in bounds]
        if unknown := [place for place in range(count) if scale[place] > 0 and not known[place]]:
            raise SpecMismatchError(
                f"{KEY} is above 0 for the dimensions {unknown}, for which the env has no bounds: it is a share of the "
                "range",
                f"set {KEY} to a list with 0 for them, or wrap the env so that its actions have bounds",
            )
        device = self.low.device
        bounds = [pair if there else (-1.0, 1.0) for pair, there in zip(bounds, known, strict=True)]
        self.low, self.high = torch.tensor(bounds, dtype=torch.float32, device=device).unbind(1)
        self.where = torch.tensor([place for place in range(count) if scale[place] > 0], device=device)
        limits = torch.tensor(scale, dtype=torch.float32, device=device)[self.where]
        self.limit = limits * (self.high - self.low)[self.where] / 2
        self._shape = (num_action_chunks, count)

    @torch.no_grad()
    def begin(self, obs: Mapping[str, Tensor], noise: Tensor) -> Mapping[str, Tensor]:
        told = {name.removeprefix(FRONT): field for name, field in obs.items() if name.startswith(FRONT)}
        seen = {name: field for name, field in obs.items() if not name.startswith(FRONT)}
        drawn = self.base_noise(noise)
        return self.given(self.base.act({**seen, **told}, drawn, GREEDY).fields["actions"])

    def base_noise(self, noise: Tensor) -> Tensor:
        """Makes the base's noise of the head's [B, :attr:`noise_size`]; what a greedy decision does not read is 0."""
        declared, size = self.base.spec.noise, self.noise_size
        found = noise.new_zeros(len(noise), math.prod(declared.shape))
        normal = size if declared.kind == "normal" else 0
        if declared.uniform:
            normal = min(normal, (declared.shape[0] - declared.uniform) * math.prod(declared.shape[1:]))
        found[:, :normal] = noise[:, :normal]
        found[:, normal:size] = _uniform(noise[:, normal:size])
        return found.unflatten(1, declared.shape) if declared.shape else found[:, 0]

    def given(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Returns the fields of a base's actions [B, ≥K, A]."""
        actions = actions[:, : self._shape[0]].float()
        scaled = 2 * (actions - self.low) / (self.high - self.low) - 1
        return {BASE: scaled.flatten(1), ACTIONS: actions}

    def actions(self, obs: Mapping[str, Tensor], chunk: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        base = fields[ACTIONS]
        kept = base[..., self.where]
        change = chunk.unflatten(1, (self._shape[0], len(self.where))) * self.limit
        moved = torch.clamp(kept + change, self.low[self.where], self.high[self.where])
        found = base.clone()
        found[..., self.where] = torch.where(change == 0, kept, moved)  # also what lies beyond the limits
        return found

    def chunk(self, actions: Tensor, fields: Mapping[str, Tensor]) -> Tensor:
        if BASE not in fields:
            raise ConfigError(
                "a residual is a change of what the base does, and demonstrations do not say what it would have done",
                "train the head with algorithm=sac and algorithm.replay.demonstrations, or clone demonstrations with a "
                "policy of its own",
            )
        base = (fields[BASE].unflatten(1, self._shape) + 1) / 2 * (self.high - self.low) + self.low
        return ((actions - base)[..., self.where] / self.limit).flatten(1)


def scales_of(scale: Any) -> Sequence[float]:
    """Returns the scales as they were given, one or one for each dimension.

    Raises:
        ConfigError: they are no numbers from 0 to 2, or all are 0.
    """
    given = scale if isinstance(scale, Sequence) and not isinstance(scale, str) else [scale]
    numbers = [not isinstance(one, bool) and isinstance(one, int | float) and 0 <= one <= 2 for one in given]
    if not all(numbers) or not any(one > 0 for one in given):
        raise ConfigError(
            f"{KEY} is {scale!r}, expected a number above 0 and up to 2, or a list of such, in which 0 leaves a "
            "dimension to the base",
            f"set {KEY}=0.1, a tenth of half the range of the actions; e.g. [0.1,0.1,0.1,0.1,0.1,0.1,0] leaves the "
            "gripper alone",
        )
    return [float(one) for one in given]


def _uniform(noise: Tensor) -> Tensor:
    """Maps normal numbers to uniform ones in [0, 1)."""
    return (0.5 * torch.special.erfc(-noise / math.sqrt(2))).clamp(0, 1 - 2**-24)
