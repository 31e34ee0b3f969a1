"""The meter of gradient noise: formulas, a problem whose noise is known, and the trainer, which it does not change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rig import CPU
from torch import nn

from embodied.learn.step.meters.noise.estimate import SURE, NoiseScale
from embodied.learn.step.meters.noise.meter import NoiseMeter
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.trainer import Trainer
from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas
from embodied.schema import ActorConfig, AlgorithmConfig, ModelConfig, OptimConfig
from embodied.testing import FakePolicy
from embodied.types import Sampling

NAMES = {"train/noise_scale_episodes", "train/signal_to_noise", "train/signal_to_noise_error"}


def test_two_groups_by_hand():
    # Gradients of the two groups: 2 and 6. Their variance is 8, their mean 4, whose square has 8 / 2 of it too much.
    scale = NoiseScale()
    scale.take(torch.tensor([[1.0], [3.0]]).double(), episodes=6)
    assert scale.trace / scale.square == pytest.approx(3 * 8 / 12), "three episodes a group"
    assert scale.metrics(6) == pytest.approx({"train/signal_to_noise": 3.0, "train/noise_scale_episodes": 2.0})
    assert scale.metrics(12)["train/signal_to_noise"] == pytest.approx(6.0)


def test_means_come_before_the_ratio_and_noise_alone_has_no_scale():
    scale = NoiseScale()
    scale.take(torch.tensor([[1.0], [3.0]]).double(), 2)
    scale.take(torch.tensor([[1.0], [-1.0]]).double(), 2)  # variance 8, square −4
    assert scale.metrics(2)["train/noise_scale_episodes"] == pytest.approx((0.95 * 8 + 8) / (0.95 * 12 - 4))
    alone = NoiseScale()
    alone.take(torch.tensor([[1.0], [-1.0]]).double(), 2)
    assert alone.metrics(2) == {"train/signal_to_noise": 0.0}
    assert NoiseScale().metrics(2) == {}


def test_an_update_that_overflows_is_left_out():
    scale = NoiseScale()
    scale.take(torch.tensor([[1.0], [3.0]]).double(), 6)
    before = scale.state_dict()
    for sums in ([[1.0], [float("nan")]], [[float("inf")], [1.0]], [[1e100], [-2e100]]):
        scale.take(torch.tensor(sums).double(), 6)
    assert scale.state_dict() == before


def test_the_error_is_that_of_the_ratio():
    random, spread, errors = torch.Generator().manual_seed(0), [], []
    for _ in range(200):
        scale = NoiseScale()
        for number in range(20):
            assert ("train/signal_to_noise_error" in scale.metrics(8)) == (number >= SURE)
            scale.take(0.5 + torch.randn(8, 10, generator=random).double(), 8)
        spread.append(8 * scale.square / scale.trace)
        errors.append(scale.metrics(8)["train/signal_to_noise_error"])
    assert torch.tensor(errors).mean() == pytest.approx(float(torch.tensor(spread).std()), rel=0.2)


class Linear(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)


WIDTH, GROUPS, GROUP = 40, 16, 4  # wider than a sketch
OF_GROUP, OF_RECORD = 0.01, 0.02  # variances of a group's own noise, and of a record's


def test_a_known_noise_is_measured_within_a_tenth():
    """Record r of group g has the gradient ``y xᵀ`` with ``x ~ N(0, 1)`` of the group, and ``y = G x`` with noise of
    the group and of the record. So ``tr Σ = |G|² (d + 1) + (σ_g² + σ_r² / k) d²`` for a group of k records."""
    random = torch.Generator().manual_seed(5)
    policy: Any = Linear(WIDTH)
    true = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=random)).Q / WIDTH**0.5  # |G|² = 1
    trace = (WIDTH + 1) + (OF_GROUP + OF_RECORD / GROUP) * WIDTH**2
    meter = NoiseMeter(policy, Replicas(policy, Group()), 0, CPU, on=True)
    records = GROUPS * GROUP
    batch: Any = SimpleNamespace(group_ids=torch.arange(records) // GROUP + 7)
    for iteration in range(50):
        x = torch.randn(GROUPS, WIDTH, generator=random)
        own = OF_GROUP**0.5 * torch.randn(GROUPS, WIDTH, generator=random)
        y = (x @ true.T + own).repeat_interleave(GROUP, 0)
        y, x = y + OF_RECORD**0.5 * torch.randn(records, WIDTH, generator=random), x.repeat_interleave(GROUP, 0)
        with meter.first_pass(batch, iteration, UpdateMetrics(), records):
            for part in torch.randperm(records, generator=random).split(13):
                with meter.records(part, 1.0):
                    ((policy.layer(x[part]) * y[part]).sum() / records).backward()
    found = meter.metrics(records)
    assert found["train/noise_scale_episodes"] == pytest.approx(GROUP * trace, rel=0.1)
    assert found["train/signal_to_noise"] == pytest.approx(GROUPS / trace, rel=0.1)


def made(env: Any, on: bool = True, policy: Any = None, **algorithm: Any) -> Trainer:
    policy = policy or FakePolicy()
    policy.bind(env)
    actor = ActorConfig(
        global_batch_size=9, micro_batch_size=4, optim=OptimConfig(lr=0.01),
        model=ModelConfig(_target_="embodied.testing.FakePolicy"),
    )  # fmt: skip
    config = AlgorithmConfig(group_size=2, update_epoch=2, calculate_noise_scale=on, **algorithm)
    return Trainer(
        policy=policy, env=env, actor=actor, algorithm=config, sampling=Sampling(), device=CPU, seed=0, max_steps=10,
        max_bad_updates=3,
    )  # fmt: skip


def test_it_changes_no_bit_of_the_training(collected):
    env, arrays, results = collected
    with_meter, without = made(env), made(env, on=False)
    for iteration in range(3):
        found, _ = with_meter.update(arrays, results, iteration)
        expected, _ = without.update(arrays, results, iteration)
        assert {name: value for name, value in found.items() if name not in NAMES} == expected
        assert "train/signal_to_noise" in found
    pairs = zip(with_meter.policy.named_parameters(), without.policy.named_parameters(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_a_run_that_goes_on_measures_the_same(collected):
    env, arrays, results = collected
    through, first = made(env), made(env)
    rows = [through.update(arrays, results, iteration)[0] for iteration in range(2)]
    first.update(arrays, results, 0)
    second = made(env, policy=first.policy)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    row, _ = second.update(arrays, results, 1)
    assert {name: row[name] for name in NAMES & row.keys()} == {name: rows[1][name] for name in NAMES & row.keys()}
    assert second.noise.state_dict() == through.noise.state_dict()
    assert second.noise.state_dict()["updates"] == 2, "the first counts as well"
    second.load_state_dict(second.state_dict() | {"noise": first.noise.state_dict() | {"square": float("nan")}})
    assert second.noise.state_dict() == through.noise.state_dict(), "such a state would spoil all that follow"


@pytest.mark.parametrize(
    "algorithm", [{"early_stop_imp_ratio": 1.0000001}, {"adv_type": "gae", "critic_warmup_steps": 99}]
)
def test_an_update_that_is_no_whole_gradient_is_not_counted(collected, algorithm):
    env, arrays, results = collected
    values = "critic_warmup_steps" in algorithm
    if values:
        arrays = {**arrays, "value": torch.zeros(len(arrays["t"]), 1).numpy()}
    trainer = made(env, policy=FakePolicy(value_head=values), **algorithm)
    found, _ = trainer.update(arrays, results, 0)
    assert values or found["train/early_stops"] > 0
    assert not NAMES & found.keys()


def test_why_there_is_no_measurement():
    policy = FakePolicy()
    sharded = Replicas(policy, Group())
    sharded.collective_passes = True
    assert "fsdp2" in NoiseMeter(policy, sharded, 0, CPU, on=True).why_not
    compiled = FakePolicy()
    compiled.body[0]._compiled_call_impl = compiled.body[0]._call_impl
    assert "compiled" in NoiseMeter(compiled, Replicas(compiled, Group()), 0, CPU, on=True).why_not
    frozen = FakePolicy().requires_grad_(False)
    frozen.task.weight.requires_grad_(True)
    assert "no linear layer" in NoiseMeter(frozen, Replicas(frozen, Group()), 0, CPU, on=True).why_not
    assert NoiseMeter(policy, Replicas(policy, Group()), 0, CPU, on=True).why_not == ""
