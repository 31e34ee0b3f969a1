"""The Wilson interval against numbers worked out by hand, z = 2 where that makes them simple."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.observe.statistics import wilson


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
