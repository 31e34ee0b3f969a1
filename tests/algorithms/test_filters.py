"""The group filter against numbers worked out by hand."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms.advantages.filters import informative, within_bounds


def test_groups_with_their_mean_within_the_bounds_are_kept():
    # Group 5: 1/2. Group 3: 0. Group 9: 1. Group 4: 1/10, on the bound. Group 2: 1/11, below it.
    ids = torch.tensor([5, 3, 5, 9, 3] + 10 * [4] + 11 * [2])
    returns = torch.tensor([1.0, 0, 0, 1, 0] + [1.0] + 9 * [0.0] + [1.0] + 10 * [0.0])
    kept = within_bounds(returns, ids, 0.1, 0.9).tolist()
    assert kept == [True, False, True, False, False] + 10 * [True] + 11 * [False]


def test_bounds_that_float_cannot_hold_include_themselves():
    returns = torch.tensor([0.1, 0.1, 0.1, 0.9, 0.9, 0.9])
    assert within_bounds(returns, torch.tensor([0, 0, 0, 1, 1, 1]), 0.1, 0.9).all()


def test_the_margin_is_for_rounding_alone():
    """One success in 990 or 1010 is not one in 1000, however many episodes a group has."""
    for others, kept in ((989, [True, False]), (999, [True, True]), (1009, [False, True])):
        returns, ids = torch.tensor([1.0] + others * [0.0]), torch.zeros(1 + others, dtype=torch.long)
        bounds = ((0.001, 1.0), (0.0, 0.001))
        assert [bool(within_bounds(returns, ids, *both).all()) for both in bounds] == kept


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1.0])), min_size=1, max_size=20), st.integers(0, 99))
def test_the_order_of_episodes_does_not_matter_and_groups_stay_whole(episodes, seed):
    ids = torch.tensor([group for group, _ in episodes])
    returns = torch.tensor([value for _, value in episodes])
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    kept = within_bounds(returns, ids, 0.3, 0.8)
    assert torch.equal(within_bounds(returns[order], ids[order], 0.3, 0.8), kept[order])
    for group in ids.unique():
        assert len(kept[ids == group].unique()) == 1


def test_groups_whose_scores_are_all_equal_teach_nothing():
    # Group 5: 1, 0. Group 3: three times .1. Group 9: one episode.
    ids, scores = torch.tensor([5, 3, 3, 5, 9, 3]), torch.tensor([1.0, 0.1, 0.1, 0.0, 1.0, 0.1])
    assert informative(scores, ids).tolist() == [True, False, False, True, False, False]
    assert not informative(torch.tensor([1.0, 1 + 2**-23]), torch.tensor([0, 0])).any()  # rounding
