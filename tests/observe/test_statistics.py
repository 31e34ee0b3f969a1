"""Intervals against numbers worked out by hand (z = 2 where that makes them simple), against a published one, against a
search, and by how often they hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.observe import statistics
from embodied.observe.statistics import paired, wilson


def test_half_of_four():
    # z = 2, n = 4: z²/n = 1. Centre (.5 + .5) / 2 = .5; half 2·√(.25/4 + 1/16) / 2 = √.125 = .353553.
    assert wilson(2, 4, z=2) == pytest.approx((0.146447, 0.853553), abs=1e-6)


def test_none_and_all_of_eight():
    # z = 2, n = 8: z²/n = ½. 0/8: centre .25/1.5 = 1/6, half 2·√(.5/32)/1.5 = .25/1.5 = 1/6 → 0 .. 1/3.
    assert wilson(0, 8, z=2) == (0.0, pytest.approx(1 / 3))
    assert wilson(8, 8, z=2) == (pytest.approx(2 / 3), 1.0)


def test_the_default_is_95_percent():
    # 1.96² = 3.8416; 0/10: high = (z²/n)/(1 + z²/n) = .38416/1.38416 = .277540. Published for 0/10: 27.75 %.
    assert wilson(0, 10)[1] == pytest.approx(0.277540, abs=1e-6)


def test_no_episodes_say_nothing():
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3), (1, 0)])
def test_impossible_counts_are_refused(successes, n):
    with pytest.raises(ValueError, match=f"got {successes} successes of {n}"):
        wilson(successes, n)


@given(n=st.integers(1, 5000), data=st.data())
def test_the_interval_holds_the_rate_and_mirrors(n, data):
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low))


def interval(both: int, first: int, second: int, neither: int) -> tuple[float, float]:
    """Of the second rate minus the first. The counts are of starts at which both succeeded, one alone, and neither."""
    counts = (both, first, second, neither)
    pairs = np.repeat([(True, True), (True, False), (False, True), (False, False)], counts, axis=0).tolist()
    found = paired([one for one, _ in pairs], [other for _, other in pairs])
    assert (found.first, found.second, found.starts) == (both + first, both + second, sum(counts))
    assert found.difference == (second - first) / sum(counts)
    return found.low, found.high


def test_a_published_paired_interval():
    """Airway hyper-responsiveness before and after a transplantation: of 21 children 1 both times, 1 before, 7 after.
    Fagerland, Lydersen and Laake (2014), "Recommended tests and confidence intervals for paired binomial proportions",
    Stat. Med. 33, have -0.517 to -0.026 for Tango's interval of before minus after."""
    assert interval(1, 7, 1, 12) == pytest.approx((-0.517, -0.026), abs=5e-4)
    assert interval(1, 1, 7, 12) == pytest.approx((0.026, 0.517), abs=5e-4)


COUNTS = st.tuples(*[st.integers(0, 300)] * 4).filter(any)


@given(COUNTS)
def test_a_paired_interval_holds_the_difference_and_mirrors(counts):
    both, first, second, neither = counts
    low, high = interval(*counts)
    assert -1 <= low <= (second - first) / sum(counts) + 1e-12
    assert (second - first) / sum(counts) - 1e-12 <= high <= 1
    assert interval(both, second, first, neither) == pytest.approx((-high, -low))
    assert interval(neither, first, second, both) == pytest.approx((low, high))


@pytest.mark.parametrize(("first", "second"), [([], []), ([True], [True, False])])
def test_pairs_that_are_none_are_refused(first, second):
    with pytest.raises(ValueError, match="expected equally many and at least one"):
        paired(first, second)


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.05, 0.15), (0.9, 0.05, 0.05, 0.0), (0.3, 0.0, 0.0, 0.7)])
@pytest.mark.parametrize("n", [20, 100])
def test_a_paired_interval_holds_the_truth_95_times_of_100(shares, n):
    truth = shares[2] - shares[1]
    drawn = [*map(tuple, np.random.default_rng(0).multinomial(n, shares, size=2000).tolist())]
    found = {counts: interval(*counts) for counts in set(drawn)}
    assert np.mean([found[counts][0] <= truth <= found[counts][1] for counts in drawn]) > 0.93


def test_pairs_that_agree_make_the_interval_narrower():
    def width(*counts: int) -> float:
        low, high = interval(*counts)
        return high - low

    assert width(50, 10, 0, 40) < 0.7 * width(30, 30, 20, 20)  # 60 and 50 of 100 both times


def outcomes(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    first = [True] * (both + lost) + [False] * (gained + neither)
    return first, [True] * both + [False] * lost + [True] * gained + [False] * neither


def likeliest_rate(lost: int, gained: int, n: int, delta: float) -> float:
    """Rate of losses that makes the outcomes likeliest if gains are ``delta`` more frequent, by search."""
    low, high = max(0.0, -delta), (1 - delta) / 2
    rates = [low + (high - low) * (k + 0.5) / 20000 for k in range(20000)]

    def likelihood(rate: float) -> float:
        parts = ((gained, rate + delta), (lost, rate), (n - gained - lost, 1 - 2 * rate - delta))
        return sum(count * math.log(max(p, 1e-300)) for count, p in parts if count)

    return max(rates, key=likelihood)


@pytest.mark.parametrize("table", [(43, 0, 1, 0), (30, 12, 2, 6), (5, 3, 4, 8), (0, 4, 0, 0), (1, 2, 5, 0)])
def test_the_ends_of_the_paired_interval_are_rejected_just_so(table):
    """At both ends the observed difference is 1.96 standard errors away, under the likeliest rates with that end."""
    _, lost, gained, _ = table
    n, found = sum(table), paired(*outcomes(*table))
    assert found.difference == (gained - lost) / n
    for end, side in ((found.low, 1), (found.high, -1)):
        if abs(end) > 0.999:
            continue
        rate = likeliest_rate(lost, gained, n, end)
        error = math.sqrt((2 * rate + end - end * end) / n)
        assert (found.difference - end) / error == pytest.approx(side * 1.96, abs=0.02)


def test_few_equal_starts_prove_little_and_exchanged_sides_mirror():
    assert paired([True] * 4, [True] * 4)[3:] == pytest.approx((0, -0.49, 0.49), abs=1e-3)
    one, other = paired(*outcomes(5, 3, 1, 2)), paired(*reversed(outcomes(5, 3, 1, 2)))
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert not one.differ
    assert paired(*outcomes(0, 4, 0, 0)).differ
    assert paired(*outcomes(0, 0, 4, 0)).differ
    for wrong in (([], []), ([True], [])):
        with pytest.raises(ValueError, match="equally many"):
            paired(*wrong)


# -- tests, rates on different starts, how many more -----------------------------------------------------------------


def test_exact_tests_are_the_known_ones():
    assert statistics.mcnemar(0, 0) == 1.0
    assert statistics.mcnemar(6, 1) == statistics.mcnemar(1, 6) == 2 * (1 + 7) / 2**7
    assert statistics.mcnemar(4, 4) == 1.0
    # Fisher's tea: 3 of 4 and 1 of 4; the tables 0, 1, 3, 4 have 1, 16, 16, 1 of 70 ways, so 34/70.
    assert statistics.fisher(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert statistics.fisher(0, 5, 0, 7) == 1.0
    with pytest.raises(ValueError, match="5 successes of 4"):
        statistics.fisher(5, 4, 1, 4)


def test_exact_tests_are_scipy_s():
    stats = pytest.importorskip("scipy.stats")
    for gained, lost in ((7, 1), (30, 12), (400, 351), (0, 9)):
        assert statistics.mcnemar(gained, lost) == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    for table in ((7, 12, 1, 9), (30, 80, 12, 50), (400, 1000, 351, 1000), (0, 9, 5, 5), (5, 5, 4, 30)):
        one, n, other, m = table
        assert statistics.fisher(*table) == pytest.approx(stats.fisher_exact([[one, n - one], [other, m - other]])[1])


@pytest.mark.parametrize(
    ("table", "ends"),
    [
        ((48, 80, 56, 70), (0.0524, 0.3339)),
        ((3, 10, 9, 10), (0.1705, 0.8090)),
        ((0, 10, 10, 10), (0.6075, 1.0)),
        ((0, 20, 10, 10), (0.6791, 1.0)),
    ],
)
def test_published_unpaired_intervals(table, ends):
    """Newcombe (1998), table II, method 10; the sides are exchanged."""
    assert statistics.unpaired(*table) == pytest.approx(ends, abs=1e-4)
    low, high = statistics.unpaired(*table[2:], *table[:2])
    assert (-high, -low) == pytest.approx(ends, abs=1e-4)


def test_several_comparisons_need_more_starts():
    """B gained 6 of 40 starts: enough for one comparison, and not for three (p = 0.031, by Holm 0.094)."""
    assert statistics.mcnemar(6, 0) < 0.05 < statistics.holm([statistics.mcnemar(6, 0), 1.0, 1.0])[0]
    assert statistics.level(1) == statistics.Z95
    assert statistics.needed_pairs(6, 0, 40).just <= 40
    needed = statistics.needed_pairs(6, 0, 40, statistics.level(3)).just
    assert needed > 40
    gained = round(6 * needed / 40)
    assert 3 * statistics.mcnemar(gained, 0) < 0.05
    assert statistics.needed_unpaired(10, 40, 20, 40, statistics.level(3)).just > (
        statistics.needed_unpaired(10, 40, 20, 40).just
    )


def test_p_values_of_several_tests_are_raised_by_holm():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_the_bootstrap_draws_tasks():
    assert statistics.bootstrap([(1, 10, 3, 10)] * 4, 0) == pytest.approx((0.2, 0.2))
    apart = [(0, 10, 10, 10), (10, 10, 0, 10)] * 5
    low, high = statistics.bootstrap(apart, 0)
    # The mean of ten signs: 2.5 % and 97.5 % of a binomial of ten fair coins are 2 and 8, so -0.6 and 0.6.
    assert (low, high) == pytest.approx((-0.6, 0.6))
    assert statistics.bootstrap(apart, 0) == (low, high)
    with pytest.raises(ValueError, match="at least two"):
        statistics.bootstrap(apart[:1], 0)


def test_the_bootstrap_over_many_tasks_is_of_95_percent():
    """200 tasks whose differences are -1 to 1 in 201 steps: the mean of 200 draws is normal, its 97.5 % are 1.96 errors
    away from their mean, where 90 % would be 1.64 and 99 % 2.58."""
    differences = np.linspace(-1, 1, 201)
    low, high = statistics.bootstrap([(100.0, 200, 100 + 100 * one, 200) for one in differences], 0)
    error = float(np.std(differences / 2) / math.sqrt(201))
    assert (low / error, high / error) == pytest.approx((-1.96, 1.96), rel=0.05)


@pytest.mark.parametrize("counts", [(7, 0, 7), (40, 0, 50), (20, 10, 100), (30, 2, 60), (1, 3, 40)])
def test_pairs_that_are_needed_are_the_fewest_of_connors_formula(counts):
    """n·δ − 1 ≥ √n·(z·√ψ + z₈₀·√(ψ − δ²)), and n − 1 is too few; where all change alike nothing is left to chance."""
    gained, lost, n = counts
    delta, share = abs(gained - lost) / n, (gained + lost) / n

    def enough(starts: int, likely: float) -> bool:
        wanted = 1.959964 * math.sqrt(share) + likely * math.sqrt(share - delta**2)
        return starts * delta - 1 >= math.sqrt(starts) * wanted - 1e-6

    needed = statistics.needed_pairs(*counts)
    for starts, likely in ((needed.just, 0.0), (needed.likely, 0.841621)):
        assert enough(starts, likely)
        assert not enough(starts - 1, likely)
    assert (needed.just == needed.likely) == (delta == 1)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 200))
def test_so_many_pairs_would_just_do(gained, lost, same):
    n = gained + lost + same
    needed = statistics.needed_pairs(gained, lost, n) if n else None
    assert (needed is None) == (gained == lost)
    if needed is None:
        return
    assert needed.just <= needed.likely

    def tells(scale: float) -> bool:
        low, high = statistics.tango(gained * scale, lost * scale, n * scale)
        return not low <= 0 <= high

    assert tells(needed.just / n)
    times = needed.just / n
    assert statistics.mcnemar(*(round(count * times) for count in (gained, lost))) < 0.08  # of whole starts
    assert needed.just <= 10 or not tells(0.5 * times), "half as many do not"


def test_likely_means_four_times_of_five():
    shares = (0.5, 0.1, 0.2, 0.2)  # both, lost, gained, neither
    needed = statistics.needed_pairs(20, 10, 100)
    for starts, power in ((needed.just, 0.5), (needed.likely, 0.8)):
        drawn = np.random.default_rng(0).multinomial(starts, shares, size=2000)
        assert np.mean([statistics.mcnemar(int(g), int(k)) < 0.05 for _, k, g, _ in drawn]) == pytest.approx(
            power, abs=0.04
        )


def test_so_many_unpaired_starts_would_just_do():
    just, likely = statistics.needed_unpaired(10, 20, 13, 20)
    n = 20 + just
    low, high = statistics.unpaired(0.5 * n, n, 0.65 * n, n)
    assert not low <= 0 <= high
    assert statistics.fisher(round(0.5 * n), n, round(0.65 * n), n) == pytest.approx(0.05, abs=0.012)
    # Two rates need n = 7.849 (p q + p' q') / (p - p')^2 = 166 each for four times of five, 180 with Yates' correction.
    assert 20 + likely == pytest.approx(180, rel=0.03)
    assert statistics.needed_unpaired(0, 20, 20, 20) == (0, 0)
    assert statistics.needed_unpaired(10, 20, 5, 10) is None
    assert statistics.needed_unpaired(500_000, 1_000_000, 500_001, 1_000_000) is None
    low, _ = statistics.unpaired(1, 8, 5, 8)  # without 0, while Fisher's test is not sure
    assert low > 0
    assert statistics.fisher(1, 8, 5, 8) > 0.05
    assert statistics.needed_unpaired(1, 8, 5, 8).just > 0
