"""Learning rates over a run, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from embodied.learn.step.optimizer import RateSchedule, make_optimizer
from embodied.schema import LrScheduleConfig, OptimConfig
from embodied.testing import FakePolicy

OPTIM = OptimConfig(lr=0.1, value_lr=0.4)


def factors(positions, iterations=10, **config) -> list[float]:
    schedule = RateSchedule(OPTIM, LrScheduleConfig(**config), iterations)
    return [pytest.approx(schedule.factor(position), abs=1e-9) for position in positions]


def test_a_constant_rate_after_a_straight_warm_up():
    assert factors([0.5, 1, 2, 9], lr_warmup_iters=2) == [0.25, 0.5, 1, 1]
    assert factors([0.5, 1, 2, 9], lr_warmup_fraction=0.2) == [0.25, 0.5, 1, 1]
    assert factors([1.0], lr_warmup_iters=4, lr_warmup_fraction=0.2) == [0.25], "iterations win over the share"
    # From .02 of a base of .1, that is from .2, half-way to 1: .6.
    assert factors([1.0], lr_warmup_iters=2, lr_warmup_init=0.02) == [0.6]
    assert factors([0.001, 10.0]) == [1, 1]


def test_linear_and_cosine_end_at_the_lowest_rate():
    # Base .1, lowest .02: a fifth. Linear at 6 of 10: 1 − .6·.8 = .52. Cosine at 5: half-way, .6.
    assert factors([6, 10, 12], lr_decay_style="linear", min_lr=0.02) == [0.52, 0.2, 0.2]
    assert factors([5, 10], lr_decay_style="cosine", min_lr_ratio=0.2) == [0.6, 0.2]
    # After a warm-up of 2, 4 is a quarter of the way: ½(1 + cos 45°).
    assert factors([4], lr_decay_style="cosine", lr_warmup_iters=2) == [(1 + math.sqrt(0.5)) / 2]
    # 1.5 periods: down at a third, up at two thirds, down at the end.
    assert factors([10 / 3, 20 / 3, 10], lr_decay_style="cosine", num_cycles=1.5) == [0, 1, 0]


def test_where_the_decay_begins_and_ends():
    assert factors([4, 5, 6], lr_decay_style="linear", lr_decay_iters=5) == [0.2, 0, 0]
    # The last 40 % of 10: from 6 on.
    assert factors([3, 6, 8, 10], lr_decay_style="linear", lr_decay_fraction=0.4) == [1, 1, 0.5, 0]


def test_both_groups_follow_one_shape():
    optimizer = make_optimizer(FakePolicy(value_head=True), OPTIM)
    RateSchedule(OPTIM, LrScheduleConfig(lr_decay_style="linear"), 10).apply(optimizer, 7.5)
    assert {group["name"]: group["lr"] for group in optimizer.param_groups} == pytest.approx(
        {"policy": 0.025, "value": 0.1}
    )


def test_adam_adds_the_decay_to_the_gradient_and_adamw_takes_it_off_the_weights():
    # One step from a gradient of 0: adamw multiplies by 1 − lr·decay; adam's step is lr·sign(weight).
    for kind, expected in (("adamw", 2 * (1 - 0.1 * 0.5)), ("adam", 2 - 0.1)):
        policy = FakePolicy()
        optimizer = make_optimizer(policy, OptimConfig(optimizer=kind, lr=0.1, weight_decay=0.5, adam_eps=1e-12))
        with torch.no_grad():
            policy.head.bias.fill_(2.0)
        policy.head.bias.grad = torch.zeros_like(policy.head.bias)
        optimizer.step()
        assert policy.head.bias.tolist() == pytest.approx([expected] * len(policy.head.bias))
