"""What checkpoints save, without a trainer: a policy, its optimizer, and a state of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.step.optimizer import make_optimizer
from embodied.schema import OptimConfig
from embodied.testing import FakePolicy


@dataclass
class Learner:
    policy: Any
    optimizer: torch.optim.Optimizer
    own: dict[str, Any] = field(default_factory=lambda: {"weight_version": 0})

    def state_dict(self) -> dict[str, Any]:
        return self.own

    def load_state_dict(self, state: Any) -> None:
        self.own = dict(state)


def learner(policy: Any, weight_version: int = 0) -> Learner:
    return Learner(policy, make_optimizer(policy, OptimConfig()), {"weight_version": weight_version})


def update(learner: Learner, seed: int, names: Callable[[str], bool] = lambda name: True) -> None:
    """A step with random gradients for the parameters that ``names`` takes; each rank has its shards of the same."""
    random = torch.Generator().manual_seed(seed)
    for name, parameter in learner.policy.named_parameters():
        if not parameter.requires_grad:
            continue
        gradient = torch.randn(parameter.shape, generator=random)
        if isinstance(parameter, DTensor):
            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient if names(name) else None
    learner.optimizer.step()
    learner.optimizer.zero_grad()


def trained(seed: int = 0, steps: int = 3, **kwargs: Any) -> Learner:
    """A fake policy and an optimizer that have seen some updates."""
    made = learner(FakePolicy(seed=seed, **kwargs), steps)
    for step in range(steps):
        update(made, 100 * seed + step)
    return made


def state(learner: Learner) -> dict[str, Tensor]:
    """A copy of all tensors of what is trained, flat, whole."""
    tensors = {name: p.detach() for name, p in learner.policy.named_parameters() if p.requires_grad}
    for index, values in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
        for name, tensor in tensors.items()
    }


def save_and_wait(checkpoints: Checkpoints, learner: Learner, iteration: int) -> None:
    checkpoints.save(learner, iteration)
    checkpoints.wait()
