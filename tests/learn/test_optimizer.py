"""That the optimizer has what its keys say, each in its own place."""

from __future__ import annotations

import pytest
import torch

from embodied.learn.step.optimizer import RateSchedule, make_optimizer
from embodied.schema import LrScheduleConfig, OptimConfig
from embodied.testing import FakePolicy

KEYS = {"lr": 0.5, "value_lr": 0.25, "adam_beta1": 0.7, "adam_beta2": 0.8, "adam_eps": 1e-3, "weight_decay": 0.125}


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam)])
def test_each_key_has_its_place(name, kind):
    made = make_optimizer(FakePolicy(value_head=True), OptimConfig(optimizer=name, **KEYS))
    assert type(made) is kind
    policy, value = made.param_groups
    assert [(group["name"], group["lr"]) for group in (policy, value)] == [("policy", 0.5), ("value", 0.25)]
    for group in (policy, value):
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.7, 0.8), 1e-3, 0.125)
    with_head = {id(p): n for n, p in FakePolicy(value_head=True).named_parameters()}
    assert len(policy["params"]) + len(value["params"]) == len(with_head)


def test_a_decay_never_begins_within_the_warm_up():
    """Of ten iterations the last eight would be the decay, and four are the warm-up: it begins at four."""
    config = LrScheduleConfig(lr_warmup_iters=4, lr_decay_style="linear", lr_decay_fraction=0.8, lr_warmup_init=0.25)
    made = RateSchedule(OptimConfig(lr=0.5), config, 10)
    assert [made.factor(at) for at in (0, 2, 4, 7, 10)] == pytest.approx([0.5, 0.75, 1.0, 0.5, 0.0])


def test_two_constant_schedules_are_the_same_once_both_warm_ups_are_over():
    one, other = (
        RateSchedule(OptimConfig(lr=0.5), LrScheduleConfig(lr_warmup_iters=n, lr_decay_style="constant"), 10)
        for n in (2, 4)
    )
    assert [one.same_from(at, other) for at in (0, 2, 3.9, 4, 9)] == [False, False, False, True, True]
    assert other.same_from(4, one)
