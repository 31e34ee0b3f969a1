"""Diagnostics of an update against numbers worked out by hand."""

import math

import pytest
import torch

from embodied.algorithms.losses import PolicyLoss
from embodied.algorithms.metrics import logprob_gap, policy_stats
from embodied.observe.metrics import check

NAN = float("nan")
# Valid ratios 1, 2, ½ with one clipped; the fourth element was never executed.
RATIO = torch.tensor([[1.0, 2.0], [0.5, NAN]])
CLIPPED = torch.tensor([[False, True], [False, True]])
MASK = torch.tensor([[True, True], [True, False]])
LOSS = PolicyLoss(torch.zeros(2, 2), RATIO, CLIPPED)


def test_ratio_clip_share_and_divergence():
    # Mean (1 + 2 + .5) / 3 = 1.16667. k3: 0, 1 − ln 2 = .306853, −.5 + ln 2 = .193147; mean exactly .5 / 3.
    got = policy_stats(LOSS, MASK).metrics()
    assert got == {
        "train/ratio_mean": pytest.approx(3.5 / 3),
        "train/ratio_max": 2.0,
        "train/clip_share": pytest.approx(1 / 3),
        "train/approx_kl": pytest.approx(0.5 / 3),
    }
    check(got)


def test_micro_batches_add_up_to_the_batch():
    halves = [policy_stats(PolicyLoss(*(part[i : i + 1] for part in LOSS)), MASK[i : i + 1]) for i in range(2)]
    assert (halves[0] + halves[1]).metrics() == pytest.approx(policy_stats(LOSS, MASK).metrics())


def test_nothing_valid_is_no_metrics():
    assert policy_stats(LOSS, torch.zeros_like(MASK)).metrics() == {}


def test_the_largest_ratio_may_be_below_one():
    loss = PolicyLoss(torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]), torch.zeros(1, 2, dtype=torch.bool))
    assert policy_stats(loss, torch.tensor([[True, True]])).metrics()["train/ratio_max"] == 0.75


def test_divergence_of_a_tiny_step_is_small_and_not_negative():
    # d = 1e-3: exp(d) − 1 − d = d²/2 + … = 5.0017e-7, far below what float32 can subtract from 1.
    ratio = torch.tensor([[math.exp(1e-3)]])
    kl = policy_stats(PolicyLoss(ratio, ratio, ratio > 9), ratio > 0).metrics()["train/approx_kl"]
    assert kl == pytest.approx(5.0017e-7, rel=1e-3)


def test_logprob_gap_is_the_largest_difference_of_valid_elements():
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, NAN]], requires_grad=True)
    old = torch.tensor([[-1.25, -2.0], [-2.0, 0.0]])
    assert logprob_gap(logprobs, old, MASK) == 1.0  # |−3 + 2|
    assert logprob_gap(logprobs, old, torch.zeros_like(MASK)) == 0.0
