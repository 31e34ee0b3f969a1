"""Advantages against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms.advantages import advantages as adv

# Group 7: returns 1, 0, 0, 1 → mean .5, deviations ±.5, Σ of squares 1.
# Group 3: returns 2, 5 → mean 3.5, deviations ±1.5, Σ of squares 4.5.
# Group 9: one episode. Group 4: three times 0.1.
# The ids are out of order and interleaved on purpose.
RETURNS = torch.tensor([1.0, 2.0, 0.0, 8.0, 0.0, 5.0, 1.0, 0.1, 0.1, 0.1])
GROUPS = torch.tensor([7, 3, 7, 9, 7, 3, 7, 4, 4, 4])


def by_hand(group_7: float, group_3: float) -> list[float]:
    """Deviations of +½ in group 7 become ``group_7``, those of +1½ in group 3 become ``group_3``."""
    return [group_7, -group_3, -group_7, 0.0, -group_7, group_3, group_7, 0.0, 0.0, 0.0]


def test_grpo_with_the_sample_deviation():
    # std_7 = √(1/3) = .57735, .5 / .577351 = .866024; std_3 = √4.5 = 2.12132, 1.5 / 2.121321 = .707106.
    got = adv.grpo(RETURNS, GROUPS)
    assert got.values.tolist() == pytest.approx(by_hand(0.5 / (math.sqrt(1 / 3) + 1e-6), 0.7071064), abs=1e-6)
    assert got.values.dtype == torch.float32


def test_grpo_with_the_deviation_of_the_population():
    # std_7 = √(1/4) = .5, .5 / .500001 = .999998; std_3 = √(4.5/2) = 1.5, 1.5 / 1.500001 = .9999993.
    got = adv.grpo(RETURNS, GROUPS, std_ddof=0)
    assert got.values.tolist() == pytest.approx(by_hand(0.999998, 0.9999993), abs=1e-7)


def test_grpo_eps_bounds_what_a_tiny_difference_is_worth():
    # Deviations ±1, std √2: 1 / (√2 + .5) = .522408.
    got = adv.grpo(torch.tensor([0.0, 2.0]), torch.tensor([0, 0]), eps=0.5)
    assert got.values.tolist() == pytest.approx([-0.522408, 0.522408], abs=1e-6)


def test_dr_grpo_only_takes_the_mean_away():
    assert adv.dr_grpo(RETURNS, GROUPS).values.tolist() == by_hand(0.5, 1.5)
    assert adv.grpo(RETURNS, GROUPS, normalize=False).values.tolist() == by_hand(0.5, 1.5)


def test_rloo_compares_with_the_mean_of_the_others():
    # Group 7, return 1: the others are 0, 0, 1, mean 1/3, hence 2/3 (= 4/3 · ½). Group 3, return 5: 5 − 2 = 3.
    assert adv.rloo(RETURNS, GROUPS).values.tolist() == pytest.approx(by_hand(2 / 3, 3.0))


def test_raw_is_the_return():
    got = adv.raw(RETURNS, GROUPS)
    assert torch.equal(got.values, RETURNS)
    assert got.zero_groups == 0


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_groups_without_a_difference_are_exactly_zero_and_counted(name):
    got = getattr(adv, name)(RETURNS, GROUPS)
    assert [got.values[i].item() for i in (3, 7, 8, 9)] == [0.0] * 4
    # Groups 9 (one episode) and 4 (all equal) of the four.
    assert (got.groups, got.single_groups, got.zero_groups, got.zero_share) == (4, 1, 2, 0.5)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_equal_returns_are_zero_where_their_mean_is_rounded(name):
    # In float64 0.1 + 0.1 + 0.1 = 0.30000000000000004, and a third of that is not 0.1.
    got = getattr(adv, name)(torch.tensor([0.1, 0.1, 0.1], dtype=torch.float64), torch.tensor([2, 2, 2]))
    assert got.values.tolist() == [0.0, 0.0, 0.0]
    assert got.zero_share == 1.0


def test_large_returns_keep_their_differences():
    # The sum 33 · 2²⁰ + 2 is no float32: with a mean of float32 the first 32 would be 0.
    returns = torch.tensor([2.0**20] * 32 + [2.0**20 + 2])
    got = adv.dr_grpo(returns, torch.zeros(33, dtype=torch.long))
    torch.testing.assert_close(got.values, torch.tensor([-2 / 33] * 32 + [64 / 33]), rtol=1e-6, atol=0)


def test_returns_of_float64_are_not_rounded_to_float32():
    """Around 10⁶ the numbers of float32 are 1/16 apart."""
    got = adv.dr_grpo(torch.tensor([1e6, 1e6 + 2.03], dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    assert got.values.tolist() == pytest.approx([-1.015, 1.015], rel=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_returns_that_reach_the_same_end_by_other_sums_are_equal(name):
    random = np.random.default_rng(0)
    paths = [np.append(random.uniform(0, 0.9, 27), 1.0) for _ in range(8)]
    changes = [np.diff(path, prepend=0.0).astype(np.float32) for path in paths]
    returns = torch.tensor([float(change.sum(dtype=np.float64)) for change in changes], dtype=torch.float64)
    assert len(returns.unique()) > 1
    got = getattr(adv, name)(returns, torch.zeros(8, dtype=torch.long))
    assert got.values.tolist() == [0.0] * 8
    assert got.zero_groups == 1


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("large", [1e3, 1e6, -1e6])
def test_rounding_is_relative_to_the_returns(name, large):
    """A millionth of 1 + |R| is none; a difference ten times as large is one."""
    groups = torch.tensor([0, 0, 1, 1])
    rounded, different = 0.5e-6 * (1 + abs(large)), 1e-5 * (1 + abs(large))
    returns = torch.tensor([large, large + rounded, large, large + different], dtype=torch.float64)
    got = getattr(adv, name)(returns, groups)
    assert got.values[:2].tolist() == [0.0, 0.0]
    assert got.values[2] < 0 < got.values[3]
    assert (got.zero_groups, got.groups) == (1, 2)
    compared = adv.remax(returns[1::2], returns[::2], torch.tensor([0, 1]))
    assert (compared.values[0].item(), compared.zero_groups) == (0.0, 1)
    assert compared.values[1].item() == pytest.approx(different)


def test_no_episodes_are_no_groups():
    got = adv.grpo(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert (got.values.tolist(), got.groups, got.zero_share) == ([], 0, 0.0)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"expected \[E\] of both"):
        adv.grpo(torch.zeros(3), torch.zeros(2))


episodes = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.1, 0.3, 1.0, 5.0])), min_size=1, max_size=24)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "raw"])
@settings(deadline=None)
@given(episodes=episodes, seed=st.integers(0, 99))
def test_neither_the_order_of_episodes_nor_the_naming_of_groups_matters(name, episodes, seed):
    ids = torch.tensor([group for group, _ in episodes])
    returns = torch.tensor([value for _, value in episodes])
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    names = torch.tensor([40, -3, 17, 8, 2**40])
    estimate = getattr(adv, name)
    plain, shuffled = estimate(returns, ids), estimate(returns[order], names[ids[order]])
    torch.testing.assert_close(plain.values[order], shuffled.values)
    assert (plain.groups, plain.single_groups, plain.zero_groups) == (
        shuffled.groups,
        shuffled.single_groups,
        shuffled.zero_groups,
    )


@settings(deadline=None)
@given(episodes=episodes)
def test_grpo_is_zero_where_returns_are_equal_and_only_there(episodes):
    ids = torch.tensor([group for group, _ in episodes])
    returns = torch.tensor([value for _, value in episodes])
    values = adv.grpo(returns, ids).values
    for group in ids.unique():
        same = len(returns[ids == group].unique()) == 1
        assert (values[ids == group] == 0).all().item() == same
        assert values[ids == group].sum().item() == pytest.approx(0.0, abs=1e-4)


def test_remax():
    returns, greedy = torch.tensor([1.0, 0.0, 0.3, 5.0]), torch.tensor([0.5, 0.5, 0.1 + 0.2, 5.0])
    got = adv.remax(returns, greedy, torch.tensor([4, 4, 1, 1]))
    assert got.values.tolist() == [0.5, -0.5, 0.0, 0.0]  # .3 in float32 is not .1 + .2, but the difference is rounding
    assert (got.groups, got.zero_groups) == (2, 1)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=2, max_size=12),
    st.integers(0, 99),
)
def test_remax_of_permuted_episodes_is_permuted(episodes, seed):
    ids, returns = torch.tensor([g for g, _ in episodes]), torch.tensor([r for _, r in episodes])
    greedy = ids * 0.25
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    permuted = adv.remax(returns[order], greedy[order], ids[order])
    assert torch.equal(permuted.values, adv.remax(returns, greedy, ids).values[order])
    assert permuted.zero_groups == adv.remax(returns, greedy, ids).zero_groups
