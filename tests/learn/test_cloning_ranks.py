"""Supervised training in two processes gives the numbers of one, with all that the engine has."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from ranks import on_ranks
from test_cloning_steps import CONFIG, demonstrations

from embodied.errors import Stopped
from embodied.learn.cloning import Cloner
from embodied.parallel.group import Group
from embodied.parallel.sharding import make_parallel
from embodied.schema import bind
from embodied.testing import FakeEnv, FakePolicy

CPU = torch.device("cpu")
SCALED = {"grad_scaler": {"enabled": True, "init_scale": 1024.0, "growth_interval": 2}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "replicate": ("replicate", {}),
    "replicate, odd batch": ("replicate", {"global_batch_size": 5, "micro_batch_size": 2}),
    "replicate, average": ("replicate", {"optim": {"lr": 1e-2, "ema_decay": 0.5}}),
    "replicate, loss scale": ("replicate", SCALED),
    "fsdp2": ("fsdp2", {}),
    "fsdp2, odd batch": ("fsdp2", {"global_batch_size": 5, "micro_batch_size": 2}),
    "fsdp2, average": ("fsdp2", {"optim": {"lr": 1e-2, "ema_decay": 0.5}}),
}


def make(world: Group, strategy: str, actor: dict[str, Any]) -> Cloner:
    values = deepcopy(CONFIG)
    values["actor"] |= {"fsdp_config": {"strategy": strategy}, **deepcopy(actor)}
    config, policy = bind(values), FakePolicy()
    parallel = make_parallel(policy, config.actor.fsdp_config, config.algorithm, world, CPU)
    train, held_out = demonstrations()
    return Cloner(policy, FakeEnv().spec, config, train, held_out, CPU, parallel)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def trained(world: Group, strategy: str, actor: dict[str, Any]) -> tuple[list[dict[str, float]], dict[str, Any]]:
    cloner, metrics = make(world, strategy, actor), []
    for iteration in range(2):
        cloner.iterate(iteration)
        metrics.append(cloner.validate() | cloner.close_iteration(iteration))
    with cloner.evaluated():
        return metrics, {name: whole(value) for name, value in cloner.policy.named_parameters()}


def train_all(world: Group) -> dict[str, Any]:
    return {name: trained(world, *case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def on_two_ranks() -> list[dict[str, Any]]:
    return on_ranks(train_all)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_does(on_two_ranks, name):
    expected_metrics, expected_weights = trained(Group(), *CASES[name])
    for rank in on_two_ranks:
        metrics, weights = rank[name]
        for got, wanted in zip(metrics, expected_metrics, strict=True):
            assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        for parameter, values in expected_weights.items():
            torch.testing.assert_close(weights[parameter], values, rtol=0, atol=1e-6)


def test_the_average_is_not_the_present_weights():
    plain, averaged = (trained(Group(), "replicate", CASES[name][1])[1] for name in ("replicate", "replicate, average"))
    assert any(not torch.equal(plain[name], averaged[name]) for name in plain)


def seeds(world: Group) -> list[int]:
    """Of torch's generator in the passes of six steps, the last three of them as a run that goes on takes them."""
    found: list[int] = []
    for iteration in range(2):
        cloner = make(world, "replicate", {"micro_batch_size": 2})
        evaluate = cloner.policy.evaluate

        def spied(*given: Any, evaluate: Any = evaluate, **named: Any) -> Any:
            found.append(torch.initial_seed())
            return evaluate(*given, **named)

        cloner.policy.evaluate = spied
        cloner.iterate(iteration)
    return found


def test_each_rank_and_each_step_has_a_dropout_of_its_own():
    """Ranks that dropped the same numbers would learn less from as many samples."""
    (first, second), (alone,) = on_ranks(seeds), on_ranks(seeds, size=1)
    assert len(first) == len(second) == 6
    assert len({*first, *second}) == 12
    assert [*dict.fromkeys(alone)] == first, "rank 0 is what a single process is"


def stopped(world: Group) -> tuple[int, list[torch.Tensor]]:
    """Rank 1 is stopped in the second step."""
    cloner, passes = make(world, "replicate", {}), []

    def watch(name: str, total: int) -> Any:
        from contextlib import nullcontext

        def passed(records: int) -> bool:
            passes.append(records)
            return not (world.rank == 1 and sum(passes) > 2)

        return nullcontext(passed)

    with pytest.raises(Stopped):
        cloner.iterate(0, watch)
    return cloner.steps_done, [p.detach().clone() for _, p in cloner.policy.named_parameters()]


def test_a_stop_of_one_rank_leaves_both_after_the_same_step():
    (first, weights), (second, others) = on_ranks(stopped)
    assert first == second == 1
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
