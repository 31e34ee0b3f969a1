"""A made-up env and observations of it, for policies of 64 px."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from embodied.models.openvla_oft import build_policy
from torch import Tensor

from embodied.types import ArraySpec, ContinuousAction, EnvSpec

torch.set_num_threads(1)

TASKS = ("lift the cube", "open the top drawer and put the black bowl inside", "turn on the stove")


@pytest.fixture
def env(made_up_env: EnvSpec) -> EnvSpec:
    return made_up_env


@pytest.fixture(scope="session")
def made_up_env() -> EnvSpec:
    """Two cameras of 64 px, 8 numbers of state, three instructions of different length."""
    return EnvSpec(
        obs={"images": ArraySpec((2, 64, 64, 3), "uint8"), "state": ArraySpec((8,), "float32")},
        cameras=("agentview", "wrist"),
        action=ContinuousAction((-1.0,) * 7, (1.0,) * 7),
        tasks=TASKS,
        num_init_states=(1,) * len(TASKS),
        max_episode_steps=10,
        control_hz=20.0,
    )


@pytest.fixture
def make(make_policy: Callable[..., Any]) -> Callable[..., Any]:
    return make_policy


@pytest.fixture(scope="session")
def make_policy(made_up_env: EnvSpec) -> Callable[..., Any]:
    """Tiny policies bound to ``env``; ``tasks`` replaces its instructions."""
    env = made_up_env

    def made(tasks: tuple[str, ...] | None = None, **keys: Any) -> Any:
        policy = build_policy(**keys)
        policy.bind(env if tasks is None else replace(env, tasks=tasks, num_init_states=(1,) * len(tasks)))
        return policy

    return made


@pytest.fixture
def observe(make_observations: Callable[..., Mapping[str, Tensor]]) -> Callable[..., Mapping[str, Tensor]]:
    return make_observations


@pytest.fixture(scope="session")
def make_observations() -> Callable[..., Mapping[str, Tensor]]:
    """Random observations: pixels, state, prompts cycling through three tasks."""

    def observed(batch: int, seed: int = 0, size: int = 64) -> Mapping[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "images": torch.randint(0, 256, (batch, 2, size, size, 3), dtype=torch.uint8, generator=generator),
            "state": torch.randn(batch, 8, generator=generator),
            "prompt": torch.arange(batch, dtype=torch.int32) % len(TASKS),
        }

    return observed


@pytest.fixture
def noise() -> Callable[[int], Tensor]:
    return lambda batch: torch.rand(batch, 56, generator=torch.Generator().manual_seed(1))
