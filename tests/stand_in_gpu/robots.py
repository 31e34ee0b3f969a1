"""A made-up robot's env for policies of 64 px, and observations of it."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied.types import ArraySpec, ContinuousAction, EnvSpec

TASKS = ("lift the cube", "open the top drawer and put the black bowl inside", "turn on the stove")
ENV = EnvSpec(
    obs={"images": ArraySpec((2, 64, 64, 3), "uint8"), "state": ArraySpec((8,), "float32")},
    cameras=("agentview", "wrist"), action=ContinuousAction((-1.0,) * 7, (1.0,) * 7), tasks=TASKS,
    num_init_states=(1,) * len(TASKS), max_episode_steps=10, control_hz=20.0,
)  # fmt: skip


def observe(batch: int, seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        "images": torch.randint(0, 256, (batch, 2, 64, 64, 3), dtype=torch.uint8, generator=random),
        "state": torch.randn(batch, 8, generator=random),
        "prompt": torch.arange(batch, dtype=torch.int32) % len(TASKS),
    }
