"""Starts that are drawn with unequal chances: the chances by hand, and that weights take the bias away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.algorithms.start_sampling import chances, systematic, weights


def test_half_of_the_draws_are_even_and_half_in_proportion():
    # 1/8 each, and half of 0, 1/4, 1/4, 1/2.
    assert chances(np.array([0.0, 1.0, 1.0, 2.0])).tolist() == [0.125, 0.25, 0.25, 0.375]
    assert chances(np.zeros(4)).tolist() == [0.25] * 4


def test_no_weight_is_above_two():
    chance = chances(np.array([0.0, 0.0, 0.0, 1.0]))
    assert weights(chance).tolist() == [2.0, 2.0, 2.0, 0.4]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(1, 40), st.integers(0, 1000))
def test_each_start_comes_as_often_as_its_chance_says(spread, count, seed):
    chance = chances(np.array(spread))
    drawn = systematic(chance, count, np.random.default_rng(seed))
    assert len(drawn) == count
    often = np.bincount(drawn, minlength=len(chance))
    assert np.all(np.abs(often - count * chance) < 1 + 1e-9)


def test_weighted_draws_have_the_mean_of_all_starts():
    """500 iterations of 3 draws of 5 starts of values 0 … 4: the mean is 2, and 2.5 without weights."""
    spread, values = np.array([0.0, 0.1, 0.5, 1.0, 0.9]), np.arange(5.0)
    chance = chances(spread)
    drawn = np.concatenate([systematic(chance, 3, np.random.default_rng(seed)) for seed in range(500)])
    assert np.mean(weights(chance)[drawn] * values[drawn]) == pytest.approx(2.0, abs=0.06)
    assert np.mean(values[drawn]) == pytest.approx(float(chance @ values), abs=0.06)
    assert chance @ values > 2.4
