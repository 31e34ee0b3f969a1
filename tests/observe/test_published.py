"""Arithmetic of published counts, against values worked out by hand and scipy's."""

from __future__ import annotations

import itertools
import math

import pytest

from embodied.observe import published, statistics


def test_the_best_of_two_coins_by_hand():
    """Two fair coins: the larger number is 1 in 3/4. Two tosses each: 0 in 1/16, 1 in 8/16, 2 in 7/16."""
    assert published.expected_best(0.5, 1, 2) == pytest.approx(3 / 4)
    assert published.expected_best(0.5, 2, 2) == pytest.approx((8 / 16 * 1 + 7 / 16 * 2) / 2)
    assert published.chance_of_best(2, 0.5, 2, 2) == pytest.approx(7 / 16)
    assert published.chance_of_best(1, 0.5, 2, 2) == pytest.approx(15 / 16)
    assert published.chance_of_best(0, 0.5, 2, 2) == 1


def test_the_best_of_thirteen_by_scipy():
    stats = pytest.importorskip("scipy.stats")
    below = stats.binom.cdf(range(51), 50, 0.6)
    largest = [k * (below[k] ** 13 - (below[k - 1] ** 13 if k else 0)) for k in range(51)]
    assert published.expected_best(0.6, 50, 13) == pytest.approx(sum(largest) / 50, rel=1e-9)
    assert published.chance_of_best(41, 0.6, 50, 13) == pytest.approx(1 - below[40] ** 13, rel=1e-9)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_rates_without_luck(rate, expected):
    assert published.expected_best(rate, 20, 13) == expected


def test_what_the_best_is_worth_has_the_reported_number_as_its_best():
    worth = published.worth(41, 50, 13)
    assert published.expected_best(worth, 50, 13) == pytest.approx(41 / 50)
    assert 0.71 < worth < 0.72
    assert published.worth(11, 16, 1) == 11 / 16
    assert published.worth(50, 50, 13) == 1
    assert published.worth(0, 50, 13) == 0


def test_intervals_of_the_best_are_exact_with_sidaks_lower_level():
    assert published.corrected(41, 50, 1) == statistics.wilson(41, 50)
    assert published.tail_of_best(1) == pytest.approx(published.HALF)
    stats = pytest.importorskip("scipy.stats")
    ends = stats.beta.ppf(1 - 0.975 ** (1 / 13), 41, 10), stats.beta.ppf(0.975, 42, 9)
    assert published.corrected(41, 50, 13) == pytest.approx(ends)
    assert (published.corrected(0, 50, 13)[0], published.corrected(50, 50, 13)[1]) == (0, 1)


@pytest.mark.parametrize("rate", [0.02, 0.21, 0.5, 0.9, 0.98])
def test_the_lower_end_of_the_best_of_thirteen_misses_in_a_fortieth_at_most(rate):
    """Of 13 equal checkpoints: the chance of a best whose lower end is above their rate. Wilson's had 6.4 % at 0.21."""
    missing = [k for k in range(51) if published.corrected(k, 50, 13)[0] > rate]
    assert not missing or published.chance_of_best(missing[0], rate, 50, 13) <= published.HALF


@pytest.mark.parametrize("rates", [(0.6,) * 4, (0.8, 0.5, 0.5, 0.2), (0.7, 0.65, 0.6, 0.55)])
def test_the_chosen_ones_interval_holds_whatever_the_true_rates_are(rates):
    """All outcomes of four evaluations of 12 episodes: how often the interval misses the rate of the chosen one."""
    n, half, best_of = 12, published.HALF, len(rates)
    ways = [[math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)] for rate in rates]
    ends = [published.corrected(k, n, best_of) for k in range(n + 1)]
    too_high = too_low = 0.0
    for counts in itertools.product(range(n + 1), repeat=best_of):
        place = max(range(best_of), key=counts.__getitem__)
        chance = math.prod(own[k] for own, k in zip(ways, counts, strict=True))
        too_high += chance * (ends[counts[place]][0] > rates[place])
        too_low += chance * (ends[counts[place]][1] < rates[place])
    assert too_high <= half
    assert too_low <= half


def test_sidak_by_hand():
    assert published.sidak(0.05, 2) == pytest.approx(1 - 0.95**2)
    assert published.sidak(0.03, 1) == pytest.approx(0.03)
    assert published.sidak(1.0, 13) == 1


def test_the_difference_of_the_best_joins_corrected_intervals():
    assert published.difference((30, 50, 1), (41, 50, 1)) == statistics.unpaired(30, 50, 41, 50)
    (low, high), (low_2, high_2) = statistics.wilson(30, 50), published.corrected(41, 50, 13)
    expected = (0.22 - math.hypot(0.82 - low_2, high - 0.6), 0.22 + math.hypot(high_2 - 0.82, 0.6 - low))
    assert published.difference((30, 50, 1), (41, 50, 13)) == pytest.approx(expected)
    assert expected[0] < 0 < statistics.unpaired(30, 50, 41, 50)[0]


def test_students_quantiles_are_those_of_tables():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042}
    assert {freedom: round(published.t_quantile(freedom), 3) for freedom in table} == table


def test_means_over_seeds_by_hand():
    """Rates 0.5, 0.6, 0.7: deviation 0.1, so ± 4.3027 · 0.1 / √3."""
    mean = published.over_seeds([0.5, 0.6, 0.7])
    assert mean[:3] == pytest.approx((0.6, 0.6 - 0.24841, 0.6 + 0.24841), abs=1e-5)
    assert published.over_seeds([0.5]) is None


def test_welch_is_scipys_with_whole_degrees_of_freedom():
    stats = pytest.importorskip("scipy.stats")
    first, second = [0.60, 0.64, 0.56], [0.82, 0.76, 0.88]
    theirs, ours = stats.ttest_ind(second, first, equal_var=False), published.welch(first, second)
    assert ours.mean == pytest.approx(0.22)
    assert ours.p_value == pytest.approx(2 * stats.t.sf(theirs.statistic, math.floor(theirs.df)))
    spread = 0.22 / theirs.statistic
    assert (ours.low, ours.high) == pytest.approx((0.22 - spread * stats.t.ppf(0.975, 3),
                                                   0.22 + spread * stats.t.ppf(0.975, 3)))  # fmt: skip
    assert published.welch([0.6], second) is None
    assert published.welch([0.6, 0.6], [0.8, 0.8]) == pytest.approx((0.2, 0.2, 0.2, None))


@pytest.mark.parametrize(("first", "second"), [(0.60, 0.82), (0.95, 0.75)])
def test_so_many_episodes_are_seen_by_fishers_test_four_times_of_five(first, second):
    """The power by all outcomes: between 0.78 and 0.85 with the planned number, as the formula is an approximation."""
    stats = pytest.importorskip("scipy.stats")
    n = published.episodes_needed(first, second)
    ways = [stats.binom.pmf(range(n + 1), n, rate) for rate in (first, second)]
    likely = [[k for k in range(n + 1) if own[k] > 1e-4] for own in ways]
    power = sum(
        ways[0][a] * ways[1][b] for a in likely[0] for b in likely[1] if statistics.fisher(a, n, b, n) < 0.05
    )  # fmt: skip
    assert 0.78 < power < 0.85


def test_equal_rates_are_never_shown_to_differ():
    assert published.episodes_needed(0.6, 0.6) is None
    assert published.episodes_needed(0.6, 0.60001) is None


def test_trainings_that_happen_to_be_equal_vary_as_their_episodes_do():
    assert published.over_seeds([0.6, 0.6], 0.0001).low == pytest.approx(0.6 - 12.7062 * 0.01 / math.sqrt(2), abs=1e-5)
    floored = published.welch([0.6, 0.6], [0.8, 0.8], (0.0001, 0.0001))
    assert (floored.low, floored.high) == pytest.approx((0.2 - 4.30265 * 0.01, 0.2 + 4.30265 * 0.01), abs=1e-5)
    assert floored.p_value is not None


def test_many_episodes_are_tested_as_two_proportions_by_scipys_chi_squared():
    stats = pytest.importorskip("scipy.stats")
    theirs = stats.chi2_contingency([[5000, 15001], [5100, 14901]], correction=False)
    assert published.proportions(5000, 20001, 5100, 20001) == pytest.approx(theirs.pvalue)
    assert published.proportions(0, 5, 0, 5) == 1
