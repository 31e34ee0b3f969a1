"""Potentials of states by earlier successes; rewards made of them leave the best policy, and every advantage, alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from embodied.algorithms.advantages.estimators import Experience, make_estimator
from embodied.algorithms.potentials import LEAST_SPREAD, Points, shaping

GAMMA = 0.9
LONG = 200  # steps after which what follows is worth 1e-9


def test_a_potential_is_the_best_of_phase_over_distance():
    """Two trajectories on a line; the second feature never moves, so it counts with the least spread."""
    points = Points.of([np.array([[0.0, 5.0], [1.0, 5.0]]), np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]])])
    spread = np.std([0, 1, 0, 1, 2])
    assert points.spreads == pytest.approx([spread, LEAST_SPREAD * spread])
    assert points.scaled.shape == (1, 5), "what is the same in all points is compared once, not with each"
    assert points.phases.tolist() == pytest.approx([0, 1 / 2, 0, 1 / 3, 2 / 3])
    far = 0.5 / spread
    expected = [max(0.5, 2 / 3 / (1 + 1 / spread)), 2 / 3, max(0.5 / (1 + far), 2 / 3 / (1 + far))]
    assert points.potential(np.array([[1.0, 5.0], [2.0, 5.0], [1.5, 5.0]])) == pytest.approx(expected)
    off = 2 / 3 / (1 + 0.2 / (LEAST_SPREAD * spread))
    assert points.potential(np.array([[2.0, 5.2]])) == pytest.approx([off]), "it would be 2/3 if it did not count"


def test_potentials_are_bounded_and_of_each_state_alone():
    draw = np.random.default_rng(0)
    points = Points.of([draw.normal(size=(n, 3)).astype(np.float32) for n in (4, 9, 2)])
    states = draw.normal(scale=30, size=(50, 3)).astype(np.float32)
    found = points.potential(states)
    assert (found >= 0).all()
    assert (found < 1).all()
    assert np.array_equal(found, np.concatenate([points.potential(state[None]) for state in states]))
    one = Points.of([np.ones((1, 3), np.float32)])
    assert one.potential(states).tolist() == [0.0] * 50, "a success without a way to it says nothing"


def test_a_reward_is_the_discounted_change_of_the_potential():
    counts = np.array([[True, True, False], [True, True, True]])
    found = shaping(np.array([0.2, 0.6, 0.5]), counts, 0.5)
    assert found == pytest.approx(np.array([[-0.1, -0.1 + 0.2, 0.0], [-0.3, -0.3, -0.3 - 0.05]]))


# -- a problem small enough to try every policy: three states in a row, each near to or far from the success ----------

# state → action → next state, reward; 4 is the end. Action 1 of state 1 goes back, action 1 of state 2 stays there.
MOVES = {0: ((1, 0.0), (0, 0.0)), 1: ((2, 0.0), (0, 0.0)), 2: ((4, 1.0), (2, 0.0)), 3: ((4, 0.0), (3, 0.0))}
PLACES = {0: [0.0], 1: [1.0], 2: [2.0], 3: [2.1], 4: [3.0]}


def episode(policy: tuple[int, ...], start: int) -> tuple[list[int], list[float]]:
    """States and rewards of an episode; it ends at 4, or is cut off after LONG steps."""
    states, rewards = [start], []
    while states[-1] != 4 and len(rewards) < LONG:
        following, reward = MOVES[states[-1]][policy[states[-1]]]
        states.append(following)
        rewards.append(reward)
    return states, rewards


Shape = Callable[[list[int]], np.ndarray]


def ranking(shape: Shape, start: int) -> dict[tuple[int, ...], float]:
    """The discounted return of every policy from a start."""
    found = {}
    for policy in itertools.product((0, 1), repeat=4):
        states, rewards = episode(policy, start)
        whole = np.array(rewards) + shape(states)
        found[policy] = float((GAMMA ** np.arange(len(whole)) * whole).sum())
    return found


def best(returns: dict[tuple[int, ...], float]) -> set[tuple[int, ...]]:
    most = max(returns.values())
    return {policy for policy, value in returns.items() if value > most - 1e-6}


def potentials(states: list[int], points: Points) -> np.ndarray:
    found = points.potential(np.array([PLACES[state] for state in states]))
    if states[-1] == 4:
        found[-1] = 0.0
    return found


def of_potentials(points: Points) -> Shape:
    def shape(states: list[int]) -> np.ndarray:
        return shaping(potentials(states, points), np.ones((len(states) - 1, 1), bool), GAMMA)[:, 0]

    return shape


def nearness_itself(points: Points) -> Shape:
    """What is no change of a potential: how near each step has come."""
    return lambda states: potentials(states, points)[1:]


def changes_best_policy(of: Callable[[Points], Shape]) -> bool:
    points = Points.of([np.array([PLACES[state] for state in (0, 1, 2, 4)])])
    nothing: Shape = lambda states: np.zeros(len(states) - 1)  # noqa: E731
    return any(best(ranking(of(points), start)) != best(ranking(nothing, start)) for start in range(4))


def test_the_best_policy_stays_the_same():
    """Returns of all sixteen policies differ by one constant, so their whole order stays."""
    assert not changes_best_policy(of_potentials)
    points = Points.of([np.array([PLACES[state] for state in (0, 1, 2, 4)])])
    for start in range(4):
        plain = ranking(lambda states: np.zeros(len(states) - 1), start)
        shaped = ranking(of_potentials(points), start)
        differences = [shaped[policy] - plain[policy] for policy in plain]
        assert differences == pytest.approx([-potentials([start], points)[0]] * 16, abs=1e-6)


def test_a_reward_for_nearness_itself_fails_the_same_test():
    """Staying beside the success for ever would pay more than the success."""
    assert changes_best_policy(nearness_itself)


def test_a_potential_at_the_end_fails_the_same_test():
    """An end that keeps its potential would be worth it without the success: state 3 is beside the way."""

    def kept(points: Points) -> Shape:
        def shape(states: list[int]) -> np.ndarray:
            values = points.potential(np.array([PLACES[state] for state in states]))
            return shaping(values, np.ones((len(states) - 1, 1), bool), GAMMA)[:, 0]

        return shape

    assert changes_best_policy(kept)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (0.7, 0.0)], ids=["both end", "one is cut off"])
def test_with_values_that_know_the_potential_no_advantage_changes(ends):
    """What a critic must learn is V − Φ; with it, and Φ where a value is bootstrapped, gae gives the same numbers."""
    draw = np.random.default_rng(1)
    ids = torch.tensor([0, 0, 0, 1, 1])
    rewards, values = draw.normal(size=5), draw.normal(size=5)
    phi = [np.array([0.1, 0.4, 0.2, ends[0]]), np.array([0.3, 0.9, ends[1]])]
    more = np.concatenate([shaping(one, np.ones((len(one) - 1, 1), bool), GAMMA)[:, 0] for one in phi])
    bootstrap = np.array([0.5 if end else 0.0 for end in ends])

    def advantages(rewards: np.ndarray, values: np.ndarray, bootstrap: np.ndarray) -> torch.Tensor:
        given = (torch.from_numpy(rewards), ids, torch.tensor([0, 1]))
        estimate = make_estimator("gae", gamma=GAMMA, gae_lambda=0.8)
        return estimate(
            Experience(*given, values=torch.from_numpy(values), bootstrap=torch.from_numpy(bootstrap))
        ).values

    known = np.concatenate([one[:-1] for one in phi])
    shaped = advantages(rewards + more, values - known, bootstrap - np.array([one[-1] for one in phi]))
    torch.testing.assert_close(shaped, advantages(rewards, values, bootstrap))
