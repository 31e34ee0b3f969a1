"""A policy that solves FakeEnv: its actions lead straight to the goal, K of them from one observation."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from embodied.testing import FakePolicy
from embodied.types import Decision, Sampling


class Straight(FakePolicy):
    """Chunks of eight actions. Each moves the point by at most 0.1 along each axis (FakeEnv)."""

    def __init__(self) -> None:
        super().__init__(num_action_chunks=8)

    def act(self, obs: Mapping[str, torch.Tensor], noise: torch.Tensor, sampling: Sampling) -> Decision:
        left = obs["state"][:, :2].clone()
        actions = torch.zeros(len(left), 8, 7)
        for step in range(8):
            actions[:, step, :2] = (10 * left).clamp(-1, 1)
            left -= 0.1 * actions[:, step, :2]
        others = super().act(obs, noise, sampling).fields
        return Decision({**others, "actions": actions})
