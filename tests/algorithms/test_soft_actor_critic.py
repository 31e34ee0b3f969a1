"""Soft actor-critic over chunks, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from torch import tensor

from embodied.algorithms import soft_actor_critic as sac


def test_rewards_are_discounted_by_the_control_step_and_only_where_they_were_executed():
    nan = math.nan
    rewards = tensor([[[1.0, 2.0], [4.0, 8.0]], [[1.0, 2.0], [4.0, nan]], [[1.0, nan], [nan, nan]]])
    total, discounts = sac.discounted(rewards, tensor([[2, 2], [2, 1], [1, 0]]), 0.5)
    assert total.tolist() == [1 + 1 + 1 + 1, 1 + 1 + 1, 1]  # 1 + 2/2 + 4/4 + 8/8
    assert discounts.tolist() == [0.5**4, 0.5**3, 0.5]


def test_a_target_takes_the_least_of_the_chosen_critics_and_pays_for_entropy():
    values, logprobs = tensor([[1.0, 5.0], [2.0, 4.0], [0.0, 9.0]]), tensor([-1.0, 2.0])
    rewards, discounts = tensor([10.0, 20.0]), tensor([0.5, 0.0])
    found = sac.target(rewards, discounts, values, logprobs, 0.25)
    assert found.tolist() == [10 + 0.5 * (0 + 0.25), 20]  # the second has terminated
    found = sac.target(rewards, discounts, values, logprobs, 0.25, tensor([0, 1]))
    assert found.tolist() == [10 + 0.5 * (1 + 0.25), 20]


def test_the_losses_of_critics_actor_and_temperature():
    values, targets = tensor([[1.0, 2.0], [3.0, 2.0]]), tensor([2.0, 0.0])
    assert sac.critic_loss(values, targets).tolist() == [0.5 + 0.5, 2.0 + 2.0]
    logprobs = tensor([-1.0, 1.0])
    assert sac.actor_loss(values, logprobs, 0.5, least=True).tolist() == [-0.5 - 1, 0.5 - 2]
    assert sac.actor_loss(values, logprobs, 0.5, least=False).tolist() == [-0.5 - 2, 0.5 - 2]
    log_temperature = tensor(0.0, requires_grad=True)
    sac.temperature_loss(log_temperature, tensor([2.0]), -1.0).sum().backward()
    assert log_temperature.grad == -1.0  # an entropy of −2 is below −1: the temperature rises


@pytest.mark.parametrize(("records", "due"), [(0, 0), (100, 0), (101, 0), (102, 1), (110, 5)])
def test_updates_are_a_share_of_the_records_behind_the_first(records, due):
    assert sac.updates_due(records, 100, 0.5) == due
