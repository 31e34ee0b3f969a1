"""Checkpoints: what is loaded has the bits of what was saved, also if the weights move on while it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import resume
from embodied.learn.step.engine import StepEngine
from embodied.protocols import Policy
from embodied.selftest import learning
from embodied.selftest.measured import Measured, none_of, skipped
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, BuiltPolicy, built_policy, question

ROWS = 2
SAVES = 3  # the second and third save, in the background, reuse the memory of the first


@dataclass(frozen=True)
class Learner:
    """A policy and its optimizer-step engine, to be saved (:class:`embodied.learn.checkpoint.state.Learner`)."""

    policy: Policy
    engine: StepEngine

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.engine.optimizer

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer-step engine's state."""
        return dict(self.engine.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned."""
        self.engine.load_state_dict(state)


def checkpoints(place: Place) -> Iterator[Measured]:
    """Measures how many tensors of loaded checkpoints differ from those that were saved."""
    one = built_policy(place.device, *OFT)
    learner = learner_of(one)
    asked = question(one, ROWS)
    records = {**asked.obs, **learning.decide(one, asked)}
    learning.learn(one, records, learner.engine)
    wanted = state_of(learner)
    path = Checkpoints(place.folder / "at once", -1).save(learner, 0)
    yield _compared("at once", place, path, wanted)
    saving = Checkpoints(place.folder / "background", -1, async_save=True)
    kept = []
    for iteration in range(SAVES):
        kept.append((state_of(learner), saving.save(learner, iteration)))
        learning.learn(one, records, learner.engine)  # while it is written
    saving.wait()
    for number, (wanted, path) in enumerate(kept, start=1):
        yield _compared(f"in the background, save {number}", place, path, wanted)
    if not place.on_gpu:
        yield skipped("from pinned memory", "a GPU alone copies to it, and the device is cpu")


def learner_of(built: BuiltPolicy) -> Learner:
    """Makes the learner, policy and optimizer-step engine, that a run would save."""
    return Learner(built.policy, learning.engine_of(built))


def state_of(learner: Learner) -> dict[str, Tensor]:
    """Copies every tensor that a checkpoint holds of a learner to the CPU, by name."""
    found = {n: p.detach().cpu().clone() for n, p in learner.policy.named_parameters() if p.requires_grad}
    for number, state in enumerate(learner.optimizer.state_dict()["state"].values()):
        found |= {f"{number}/{n}": v.detach().cpu().clone() for n, v in state.items() if isinstance(v, Tensor)}
    return found


def _compared(how: str, place: Place, path: Any, wanted: Mapping[str, Tensor]) -> Measured:
    other = learner_of(built_policy(place.device, *OFT))
    resume(path, other)
    found = state_of(other)
    return none_of(f"saved {how}: tensors that differ", learning.unequal(found, wanted), len(wanted))
