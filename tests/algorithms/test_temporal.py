"""Sums over time against numbers worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms.advantages.temporal import explained_variance, gae, rewards_to_go, whiten

G, L = 0.9, 0.5  # γ and λ; γλ = .45

# Episode 0: rewards 1, 0, 2 with values .5, 1, 0; it terminated: V' = 0.
#   δ₂ = 2 + 0 − 0 = 2                A₂ = 2
#   δ₁ = 0 + .9·0 − 1 = −1            A₁ = −1 + .45·2 = −.1
#   δ₀ = 1 + .9·1 − .5 = 1.4          A₀ = 1.4 + .45·−.1 = 1.355
# Episode 1: rewards 1, 1 with values 2, 3; cut off at the step limit, the final observation is worth 4.
#   δ₁ = 1 + .9·4 − 3 = 1.6           A₁ = 1.6
#   δ₀ = 1 + .9·3 − 2 = 1.7           A₀ = 1.7 + .45·1.6 = 2.42
# Elements of the two are mixed on purpose.
IDS = torch.tensor([1, 0, 0, 1, 0])
REWARDS = torch.tensor([1.0, 1.0, 0.0, 1.0, 2.0])
VALUES = torch.tensor([2.0, 0.5, 1.0, 3.0, 0.0])
BOOTSTRAP = torch.tensor([0.0, 4.0])
EXPECTED = [2.42, 1.355, -0.1, 1.6, 2.0]


def test_gae_terminated_and_truncated():
    got = gae(REWARDS, VALUES, IDS, BOOTSTRAP, G, L)
    assert got.tolist() == pytest.approx(EXPECTED)
    assert got.dtype == torch.float64


def test_gae_of_lambda_0_is_the_one_step_error():
    # The δ of above.
    assert gae(REWARDS, VALUES, IDS, BOOTSTRAP, G, 0.0).tolist() == pytest.approx([1.7, 1.4, -1.0, 1.6, 2.0])


def test_gae_of_lambda_1_is_the_return_minus_the_value():
    # Episode 0: 1 + .81·2 − .5 = 2.12; .9·2 − 1 = .8; 2. Episode 1: 1 + .9 + .81·4 − 2 = 3.14; 1 + 3.6 − 3 = 1.6.
    assert gae(REWARDS, VALUES, IDS, BOOTSTRAP, G, 1.0).tolist() == pytest.approx([3.14, 2.12, 0.8, 1.6, 2.0])


def test_rewards_to_go():
    # Episode 0: 1 + .81·2 = 2.62; 1.8; 2. Episode 1: 1 + .9 = 1.9; 1.
    assert rewards_to_go(REWARDS, IDS, 2, G).tolist() == pytest.approx([1.9, 2.62, 1.8, 1.0, 2.0])


def test_an_episode_of_one_element_and_one_of_none():
    got = gae(torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor([1]), torch.tensor([7.0, 2.0, 7.0]), G, L)
    assert got.tolist() == pytest.approx([3 + 0.9 * 2 - 1])
    assert rewards_to_go(torch.zeros(0), torch.zeros(0, dtype=torch.long), 0, G).tolist() == []


def test_everything_is_computed_in_float64():
    """Quarters beside 2³⁰ are no float32: each step of a long episode would round."""
    large, ids = 2.0**30, torch.zeros(4, dtype=torch.long)
    values = torch.tensor([large + 0.25, large + 0.5, large, large + 0.75], dtype=torch.float64)
    end = torch.tensor([large + 1.25], dtype=torch.float64)
    assert gae(torch.zeros(4), values, ids, end, 1.0, 0.0).tolist() == [0.25, -0.5, 0.75, 0.5]
    assert gae(torch.zeros(4), values, ids, end, 1.0, 1.0).tolist() == [1.0, 0.75, 1.25, 0.5]
    rewards = torch.tensor([0.25, large, 0.25, 0.5], dtype=torch.float64)
    assert rewards_to_go(rewards, ids, 1, 1.0).tolist() == [large + 1.0, large + 0.75, 0.75, 0.5]
    assert whiten(values).tolist() == pytest.approx(whiten(values - large).tolist())
    assert explained_variance(values - 0.25 * torch.tensor([1, -1, -1, 1]), values) == pytest.approx(
        explained_variance(values - large - 0.25 * torch.tensor([1, -1, -1, 1]), values - large)
    )


def test_whiten():
    # Mean 2, deviations −1, 0, 1, sample deviation 1.
    assert whiten(torch.tensor([1.0, 2.0, 3.0]), eps=0.0).tolist() == [-1.0, 0.0, 1.0]
    assert whiten(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=2e-6)


def test_whitening_needs_two_that_differ():
    # Mean 2, deviations −1 and 1, sample deviation √2.
    assert whiten(torch.tensor([1.0, 3.0]), eps=0.0).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert whiten(torch.tensor([5.0])).tolist() == [5.0]
    assert whiten(torch.zeros(0)).tolist() == []
    assert whiten(torch.tensor([0.1, 0.1, 0.1])).tolist() == [0.0, 0.0, 0.0]


def test_explained_variance():
    targets = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(torch.zeros(3), targets) == 0.0
    # Errors 0, 1, 2 − …: target − value = 0, 1, −1, variance 1, Var(target) 1.
    assert explained_variance(torch.tensor([1.0, 1.0, 4.0]), targets) == pytest.approx(0.0)
    # Errors 2, 0, −2: variance 4.
    assert explained_variance(torch.tensor([-1.0, 2.0, 5.0]), targets) == pytest.approx(-3.0)
    # Two are enough. Errors 1, 0: variance 1/2 of targets' 2.
    assert explained_variance(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 3.0])) == pytest.approx(0.75)
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])) is None
    assert explained_variance(torch.tensor([1.0]), torch.tensor([3.0])) is None


episodes = st.lists(
    st.lists(st.tuples(st.floats(-2, 2, width=32), st.floats(-2, 2, width=32)), min_size=1, max_size=6),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(deadline=None)
@given(episodes=episodes, gamma=st.floats(0.5, 1.0), gae_lambda=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_gae_is_the_textbook_loop_however_episodes_are_mixed(episodes, gamma, gae_lambda, seed):
    ids = torch.tensor([e for e, elements in enumerate(episodes) for _ in elements])
    flat = torch.tensor([element for elements in episodes for element in elements])
    bootstrap = torch.arange(len(episodes), dtype=torch.float64) - 1
    expected = []
    for e, elements in enumerate(episodes):
        following, later, own = bootstrap[e].item(), 0.0, []
        for reward, value in reversed(elements):
            later = reward + gamma * following - value + gamma * gae_lambda * later
            following = value
            own.append(later)
        expected += own[::-1]
    # Shuffled among the episodes, in order within each.
    order = torch.argsort(torch.rand(len(ids), generator=torch.Generator().manual_seed(seed)))
    places = {e: iter(torch.nonzero(ids == e).flatten().tolist()) for e in range(len(episodes))}
    mixed = torch.tensor([next(places[int(ids[i])]) for i in order])
    got = gae(flat[mixed, 0], flat[mixed, 1], ids[mixed], bootstrap, gamma, gae_lambda)
    assert got.tolist() == pytest.approx([expected[i] for i in mixed], abs=1e-6)
