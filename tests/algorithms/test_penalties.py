"""Penalties against numbers worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied.algorithms.penalties import at_the_end, overlong


def test_the_penalty_grows_over_the_buffer():
    # Limit 20, buffer 8, factor 2: nothing up to 12; 13 → −1/8·2, 16 → −4/8·2, 20 → −2.
    got = overlong(torch.tensor([1, 12, 13, 16, 20]), limit=20, buffer=8, factor=2.0)
    assert got.tolist() == [0, 0, -0.25, -1.0, -2.0]


@given(st.integers(1, 50), st.data())
def test_a_longer_episode_is_never_penalised_less(limit, data):
    buffer = data.draw(st.integers(1, limit))
    got = overlong(torch.arange(1, limit + 1), limit, buffer, 3.0)
    assert (got.diff() <= 0).all()
    assert got[-1].item() == pytest.approx(-3.0)
    assert (got[: limit - buffer] == 0).all()


def test_it_stands_at_the_last_reward_that_counts():
    rewarded = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    got = at_the_end(torch.tensor([-1.0, -2.0, -3.0]), rewarded)
    assert got.tolist() == [[0, -1, 0], [0, 0, -2], [-3, 0, 0]]
