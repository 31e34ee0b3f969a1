"""Diagnostics of an update against numbers worked out by hand."""

import math
from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms.metrics import LOG_RANGE, logprob_gap, policy_stats, sum_and_count
from embodied.algorithms.policy_loss import PolicyLoss
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
        # Of ½, 1, 2 the 1 % quantile is the least, the median the middle one, the 99 % quantile the largest.
        "train/ratio_p01": pytest.approx(0.5, rel=5e-4),
        "train/ratio_p50": pytest.approx(1.0, rel=5e-4),
        "train/ratio_p99": pytest.approx(2.0, rel=5e-4),
        "train/clip_share": pytest.approx(1 / 3),
        "train/clip_share_low": 0.0,
        "train/clip_share_high": pytest.approx(1 / 3),
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
    assert logprob_gap(logprobs, old, MASK).item() == 1.0  # |−3 + 2|
    assert logprob_gap(logprobs, old, torch.zeros_like(MASK)).item() == 0.0


def stats_of(ratios: torch.Tensor):
    return policy_stats(PolicyLoss(ratios, ratios, ratios != ratios), torch.ones_like(ratios, dtype=torch.bool))


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(1, 7), st.sampled_from([0.01, 0.3]))
def test_quantiles_do_not_depend_on_how_the_elements_are_split(seed, parts, spread):
    ratios = (spread * torch.randn(300, 2, generator=torch.Generator().manual_seed(seed))).exp()
    whole = stats_of(ratios)
    split = reduce(add, (stats_of(part) for part in ratios.tensor_split(parts)))
    assert split.metrics() == pytest.approx(whole.metrics())
    for share in (0.01, 0.5, 0.99):
        ordered = ratios.flatten().sort().values
        exact = ordered[math.ceil(share * 600) - 1].item()
        assert whole.quantile(share) == pytest.approx(exact, rel=6e-4)


def test_ratios_beyond_the_histogram_count_at_its_ends():
    stats = stats_of(torch.tensor([[1e-6, 1e6]]))
    assert stats.quantile(0.5) == pytest.approx(math.exp(-LOG_RANGE))
    assert stats.quantile(0.99) == pytest.approx(math.exp(LOG_RANGE))


def test_sums_and_counts_of_what_is_valid():
    assert sum_and_count(torch.tensor([[1.0, 2.0], [4.0, NAN]]), MASK).tolist() == [7.0, 3.0]


def test_an_update_that_is_not_finite_is_measured_without_an_error():
    """It will be left out, and its numbers are not shown; finding that out must not end the run."""
    stats = stats_of(torch.tensor([[NAN, 1.0, math.inf]]))
    assert not math.isfinite(stats.mean_ratio)
    assert stats.quantile(0.01) == pytest.approx(1.0, rel=5e-4)


@pytest.mark.parametrize("share", [0.07, 0.14, 0.28, 0.55, 0.56])
def test_a_quantile_of_a_whole_number_of_elements_is_the_last_of_them(share):
    """0.07 · 100 is 7.000000000000001, and 7 of 100 elements are 7 %."""
    assert share * 100 > round(share * 100)
    ratios = torch.ones(1, 100)
    ratios[0, : round(share * 100)] = 0.5
    assert stats_of(ratios).quantile(share) == pytest.approx(0.5, rel=5e-4)
