"""Checkpoints of small OpenVLA-OFT policies for the fake env, written without a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from embodied.models.openvla_oft import build_policy

from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.origin import Origin, Simulator
from embodied.testing import FakeEnv

TARGET = "embodied.models.openvla_oft.build_policy"
ENV = {"success_distance": 0.3, "cameras": 1, "horizon": 16}
SMALL = {
    "image_size": 32, "patch_size": 16, "vision_hidden_size": 32, "vision_num_layers": 2, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_action_chunks": 4, "use_proprio": True,
}  # fmt: skip
LORA = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False, "lora_modules_to_save": ["lm_head"]}


class Learner:
    """What is saved of a policy that was not trained."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad])

    def state_dict(self) -> dict[str, Any]:
        return {"weight_version": 3}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


def policy_of(scale: float = 1.0, **keys: Any) -> Any:
    """A policy that is bound to the fake env; its adapters are random numbers times ``scale``."""
    policy = build_policy(**{**SMALL, **keys})
    policy.bind(FakeEnv(**ENV).spec)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.mul_(scale)
    return policy


def save(run: Path, scale: float = 1.0, simulator: Simulator | None = None, **keys: Any) -> Path:
    """Writes a checkpoint of :func:`policy_of`; returns its folder."""
    env = FakeEnv(**ENV)
    made = simulator or Simulator("embodied.testing.FakeEnv", ENV)
    origin = Origin(TARGET, {**SMALL, **keys}, (), 0, env.spec, made)
    return Checkpoints(run / "checkpoints", 1, origin=origin.as_json()).save(Learner(policy_of(scale, **keys)), 1)
