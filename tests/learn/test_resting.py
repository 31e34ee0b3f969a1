"""What only updates need rests in host memory between them, with the same numbers to the bit.

There is no device here, so marks stand for it: a copy that goes to the host is marked, one that comes back is not. A
marked tensor must not be in use. ``tests/stand_in_gpu/on_gpu_resting.py`` has the same with devices that torch checks.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_ranks
from rig import CPU
from torch import Tensor

from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import resume
from embodied.learn.step import reference, resting
from embodied.learn.step.reference import OtherWeights, Reference
from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group
from embodied.parallel.sharding import make_parallel
from embodied.runtime.plan import train_plan
from embodied.schema import ActorConfig, AlgorithmConfig, FsdpConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy
from embodied.types import Sampling

KL = {"kl_beta": 0.1, "reference_reset_interval": 2, "reset_optimizer_with_reference": False}
CASES: dict[str, dict[str, Any]] = {
    "kl": KL,
    "kl in the reward": {"kl_beta": 0.1, "use_kl_in_reward": True},
    "optimizer begins anew": {**KL, "reset_optimizer_with_reference": True},
    "value head": {"adv_type": "gae", "reward_type": "chunk_level", "critic_warmup_steps": 2},
}


@dataclass
class Marks:
    """Stands for a device: tells what lies on the host, and counts copies to it and back."""

    moves: list[str] = field(default_factory=list)

    def on_host(self, tensor: Tensor) -> bool:
        return hasattr(tensor, "rests")

    def to_host(self, tensor: Tensor) -> Tensor:
        if self.on_host(tensor):
            return tensor
        self.moves.append("to the host")
        copy = tensor.detach().clone()
        copy.rests = True  # type: ignore[attr-defined]
        return copy

    def to_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        self.moves.append("to the device")
        return tensor.detach().clone()

    def install(self, opened: ExitStack) -> None:
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        for name in ("on_host", "to_host", "to_device"):
            patch.setattr(resting, name, getattr(self, name))
            if hasattr(reference, name):
                patch.setattr(reference, name, getattr(self, name))
        swap = OtherWeights._swap

        def swapped(weights: OtherWeights) -> None:
            assert not any(hasattr(kept, "rests") for kept in weights.state_dict().values())
            swap(weights)

        patch.setattr(OtherWeights, "_swap", swapped)


@pytest.fixture(scope="module")
def data(shared_rig):
    rig = shared_rig(slots=4, workers=1, success_distance=0.6, policy={"value_head": True})
    plan = train_plan(rig.env.spec, seed=23, iteration=0, episodes=8, group_size=2)
    results, _ = rig.rollout().collect(plan, rig.job())
    return rig.env.spec, {name: array.copy() for name, array in rig.slab.arrays.items()}, results


def make(data: Any, world: Group, rests: bool, strategy: str, keys: dict[str, Any], frees: bool = True) -> Trainer:
    env, _, _ = data
    policy = FakePolicy(value_head="adv_type" in keys)
    policy.bind(env)
    algorithm = AlgorithmConfig(group_size=2, **keys)
    actor = ActorConfig(
        global_batch_size=8, micro_batch_size=4, optim=OptimConfig(lr=0.01), offload_optimizer=rests,
        offload_reference=rests, offload_grad=frees, model=ModelConfig(_target_="embodied.testing.FakePolicy"),
        fsdp_config=FsdpConfig(strategy=strategy),
    )  # fmt: skip
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=algorithm, sampling=Sampling(), device=CPU, seed=0,
        max_steps=10, max_bad_updates=3, parallel=make_parallel(policy, actor.fsdp_config, algorithm, world, CPU),
    )  # fmt: skip


def states(trainer: Trainer) -> set[bool]:
    """Whether the states of the optimizer lie on the host."""
    return {hasattr(value, "rests") for state in trainer.optimizer.state.values() for value in state.values()}


def kept(trainer: Trainer) -> set[bool]:
    """Whether the weights of the reference lie on the host."""
    weights = trainer._reference.state_dict() if trainer._reference is not None else {}
    return {hasattr(values, "rests") for values in weights.values()}


def look(trainer: Trainer, seen: list[set[bool]], *step: Any) -> None:
    seen.append(states(trainer))


def learned(world: Group, data: Any, rests: bool, strategy: str, keys: dict[str, Any], folder: Path | None) -> Any:
    """Metrics of four updates, the weights after them, and what was moved. The run goes on from a checkpoint of its
    second update if there is a folder for it."""
    _, arrays, results = data
    marks, metrics = Marks(), []
    with ExitStack() as opened:
        marks.install(opened)
        trainer = make(data, world, rests, strategy, keys)
        for iteration in range(4):
            if iteration == 2 and folder is not None:
                path = Checkpoints(folder, 3).save(trainer, iteration)
                trainer = make(data, world, rests, strategy, keys)
                resume(path, trainer)
            assert states(trainer) | kept(trainer) <= {rests}
            in_use: list[set[bool]] = []
            stepping = trainer.optimizer.register_step_pre_hook(partial(look, trainer, in_use))
            metrics.append(trainer.update(arrays, results, iteration)[0])
            stepping.remove()
            assert len(in_use) > 1
            assert set().union(*in_use) == {False}
            assert states(trainer) == {rests}
            assert kept(trainer) <= {rests}
        weights = {name: whole(p) for name, p in trainer.policy.named_parameters()}
    return metrics, weights, marks.moves


def whole(parameter: Tensor) -> np.ndarray:
    tensor = parameter.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).numpy().copy()


def same(found: Any, wanted: Any) -> None:
    assert found[0] == wanted[0]
    assert found[1].keys() == wanted[1].keys()
    assert all(np.array_equal(found[1][name], values) for name, values in wanted[1].items())


@pytest.mark.parametrize("name", CASES)
def test_updates_are_the_same_to_the_bit(name, data, tmp_path):
    wanted = learned(Group(), data, False, "auto", CASES[name], None)
    assert wanted[2] == []
    for number, folder in enumerate((None, tmp_path / "checkpoints")):
        found = learned(Group(), data, True, "auto", CASES[name], folder)
        same(found, wanted)
        assert {"to the host", "to the device"} == set(found[2]), number
    same(learned(Group(), data, False, "auto", CASES[name], tmp_path / "without"), wanted)


def on_two(world: Group, data: Any, strategy: str, folder: Path) -> Any:
    without = learned(world, data, False, strategy, KL, None)
    same(learned(world, data, True, strategy, KL, None), without)
    found = learned(world, data, True, strategy, KL, folder)
    same(found, without)
    return found


@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
def test_ranks_move_what_they_hold(strategy, data, tmp_path):
    env, arrays, results = data
    shared = [replace(result, rank=result.episode.group_id % 2) for result in results]
    found = on_ranks(on_two, (env, arrays, shared), strategy, tmp_path)
    same(found[0], found[1])
    assert {"to the host", "to the device"} == set(found[0][2])


def test_an_optimizer_without_the_key_stays_and_states_that_are_gone_do_not_come_back(data):
    marks = Marks()
    with ExitStack() as opened:
        marks.install(opened)
        trainer = make(data, Group(), True, "auto", {})
        trainer.update(*data[1:], 0)
        moved = len(marks.moves)
        trainer.optimizer.state.clear()
        trainer.engine._state.wake()
        assert len(marks.moves) == moved
        assert not trainer.optimizer.state


def test_on_a_cpu_nothing_is_copied(data):
    trainer = make(data, Group(), True, "auto", KL)
    trainer.update(*data[1:], 0)
    before = [id(v) for state in trainer.optimizer.state.values() for v in state.values()]
    assert isinstance(trainer._reference, Reference)
    weights = {name: id(tensor) for name, tensor in trainer._reference.state_dict().items()}
    trainer._rest()
    assert [id(v) for state in trainer.optimizer.state.values() for v in state.values()] == before
    assert {name: id(tensor) for name, tensor in trainer._reference.state_dict().items()} == weights


def test_gradients_stay_until_the_next_update_if_that_is_wanted(data):
    _, arrays, results = data
    trainers = [make(data, Group(), False, "auto", {}, frees) for frees in (True, False)]
    for iteration in range(2):
        for trainer in trainers:
            trainer.update(arrays, results, iteration)
        freed, kept = ([p.grad for _, p in trainer.policy.named_parameters()] for trainer in trainers)
        assert not any(grad is not None for grad in freed)
        assert all(grad is not None for grad in kept)
    for (_, one), (_, other) in zip(*(trainer.policy.named_parameters() for trainer in trainers), strict=True):
        assert torch.equal(one, other), "the last gradients are no part of the next"


def test_an_interrupted_return_to_the_device_is_finished_and_the_interruption_goes_on(monkeypatch):
    """A signal may come between two parameters. What is saved then stands on the device, and the run still ends."""
    moved: list[Tensor] = []

    def interrupted(tensor: Tensor, device: torch.device) -> Tensor:
        moved.append(tensor)
        if len(moved) == 2:
            raise KeyboardInterrupt
        return tensor.clone()

    monkeypatch.setattr(resting, "on_host", lambda tensor: False)
    monkeypatch.setattr(resting, "to_host", Tensor.clone)
    monkeypatch.setattr(resting, "to_device", interrupted)
    policy = FakePolicy()
    weights, before = resting.RestingWeights(policy, True), [p.detach().clone() for p in policy.parameters()]
    weights.rest()
    with pytest.raises(KeyboardInterrupt):
        weights.wake()
    assert len(moved) == 2 + len(before), "all of them once more"
    assert all(torch.equal(one, other) for one, other in zip(policy.parameters(), before, strict=True))
    weights.wake()
    assert len(moved) == 2 + len(before), "nothing is left to move"
