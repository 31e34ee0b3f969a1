"""Levels of rewards and log-probs, against sums done by hand. N = 2 records, K = 3 actions, A = 2 numbers, T = 6."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms import granularity as g
from embodied.errors import UnknownNameError

NAN = float("nan")
NUM_STEPS = torch.tensor([3, 2])
LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], [-0.5, -0.25, -1.0, -2.0, NAN, float("inf")]])
REWARDS = torch.tensor([[0.0, 0.5, 1.0], [0.25, 1.0, NAN]])


def test_masks_follow_the_executed_steps():
    # Record 1 executed 2 of 3 actions, hence tokens 0..3 of 6.
    assert g.step_mask(NUM_STEPS, 3).tolist() == [[True, True, True], [True, True, False]]
    assert g.mask(NUM_STEPS, 3, 2, "action_level").tolist() == [[True, True, True], [True, True, False]]
    assert g.mask(NUM_STEPS, 3, 2, "token_level").tolist() == [[True] * 6, [True] * 4 + [False] * 2]
    assert g.mask(NUM_STEPS, 3, 2, "chunk_level").tolist() == [[True], [True]]


def test_rewards_of_a_chunk_are_summed_over_executed_steps():
    # 0 + .5 + 1 = 1.5; .25 + 1 = 1.25, the NaN was never executed.
    assert g.reduce_rewards(REWARDS, NUM_STEPS, "chunk_level").tolist() == [[1.5], [1.25]]
    assert g.reduce_rewards(REWARDS, NUM_STEPS, "action_level").tolist() == [[0.0, 0.5, 1.0], [0.25, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token_level", [[-1, -2, -3, -4, -5, -6], [-0.5, -0.25, -1, -2, 0, 0]]),
        # K-major: action 0 is tokens 0 and 1. −1−2 = −3, −3−4 = −7, −5−6 = −11; −.75, −3.
        ("action_level", [[-3, -7, -11], [-0.75, -3, 0]]),
        # −3−7−11 = −21; −.75−3 = −3.75.
        ("chunk_level", [[-21], [-3.75]]),
    ],
)
def test_logprobs_and_entropies_sum_to_their_level(level, expected):
    assert g.reduce_logprobs(LOGPROBS, NUM_STEPS, 3, level).tolist() == expected
    assert g.reduce_entropy(LOGPROBS, NUM_STEPS, 3, level).tolist() == expected


@pytest.mark.parametrize("level", g.LEVELS)
def test_garbage_after_the_end_sends_no_gradient(level):
    logprobs = LOGPROBS.clone().requires_grad_()
    g.reduce_logprobs(logprobs, NUM_STEPS, 3, level).exp().sum().backward()
    assert logprobs.grad[1, 4:].tolist() == [0.0, 0.0]
    assert torch.isfinite(logprobs.grad).all()


def test_advantages_spread_to_each_level():
    per_record, per_action = torch.tensor([[2.0], [-1.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert g.spread(per_record, 3, 2, "token_level").tolist() == [[2.0] * 6, [-1.0] * 6]
    assert g.spread(per_record, 3, 2, "action_level").tolist() == [[2.0] * 3, [-1.0] * 3]
    assert g.spread(per_record, 3, 2, "chunk_level").tolist() == [[2.0], [-1.0]]
    assert g.spread(per_action, 3, 2, "token_level").tolist() == [[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]]
    assert g.spread(per_action, 3, 2, "action_level").tolist() == [[1.0, 2.0, 3.0]]


def test_three_advantages_do_not_fit_one_ratio():
    with pytest.raises(ValueError, match="got 3 advantages a record for one ratio"):
        g.spread(torch.zeros(1, 3), 3, 2, "chunk_level")
    with pytest.raises(ValueError, match="expected 1 or K = 3"):
        g.spread(torch.zeros(1, 2), 3, 2, "token_level")


def test_a_chunk_of_one_action_has_one_advantage_whichever_way_it_is_named():
    assert g.spread(torch.tensor([[4.0]]), 1, 2, "chunk_level").tolist() == [[4.0]]


def test_tokens_must_divide_into_actions():
    with pytest.raises(ValueError, match="got 6 tokens a record, which K = 4"):
        g.reduce_logprobs(LOGPROBS, NUM_STEPS, 4, "token_level")


def test_unknown_levels_name_their_own_key():
    with pytest.raises(UnknownNameError, match=r"algorithm.reward_type"):
        g.reduce_rewards(REWARDS, NUM_STEPS, "token_level")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'token_level'(.|\n)*algorithm.logprob_type"):
        g.reduce_logprobs(LOGPROBS, NUM_STEPS, 3, "token_levle")
    with pytest.raises(UnknownNameError, match=r"algorithm.entropy_type"):
        g.reduce_entropy(LOGPROBS, NUM_STEPS, 3, "episode_level")
    with pytest.raises(UnknownNameError, match=r"algorithm.logprob_type"):
        g.mask(NUM_STEPS, 3, 2, "episode_level")
    with pytest.raises(UnknownNameError, match=r"algorithm.logprob_type"):
        g.spread(torch.zeros(1, 1), 3, 2, "episode_level")


@settings(deadline=None)
@given(actions=st.integers(1, 5), dims=st.integers(1, 4), steps=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_levels_agree_on_the_sum_and_on_which_tokens_count(actions, dims, steps):
    num_steps = torch.tensor(steps).clamp(max=actions)
    logprobs = -torch.rand(len(steps), actions * dims, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([row[: n * dims].sum() for row, n in zip(logprobs, num_steps, strict=True)])
    for level in g.LEVELS:
        reduced = g.reduce_logprobs(logprobs, num_steps, actions, level)
        kept = g.mask(num_steps, actions, dims, level)
        assert reduced.shape == kept.shape
        assert not reduced[~kept].any()
        torch.testing.assert_close(reduced.sum(dim=1), expected)
