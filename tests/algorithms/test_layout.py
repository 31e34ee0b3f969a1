"""Layouts of log-probs and levels of rewards, against masks and sums done by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.algorithms import layout as module
from embodied.algorithms.layout import LEVELS, Counts, Layout
from embodied.errors import ConfigError, SpecMismatchError, UnknownNameError
from embodied.types import Elements

NAN = float("nan")
NUM_STEPS = torch.tensor([3, 2])
COUNTS = Counts(NUM_STEPS)
# N = 2 decisions, K = 3 actions of A = 2 tokens; decision 1 executed two of its three actions.
TOKENS = Layout(Elements((3, 2), action_axis=0), 3)
LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], [-0.5, -0.25, -1.0, -2.0, NAN, float("inf")]])
REWARDS = torch.tensor([[0.0, 0.5, 1.0], [0.25, 1.0, NAN]])


def test_masks_of_action_tokens_follow_the_executed_steps():
    assert TOKENS.mask(COUNTS, "token_level").tolist() == [[True] * 6, [True] * 4 + [False] * 2]
    assert TOKENS.mask(COUNTS, "action_level").tolist() == [[True, True, True], [True, True, False]]
    assert TOKENS.mask(COUNTS, "chunk_level").tolist() == [[True], [True]]
    assert module.step_mask(NUM_STEPS, 3).tolist() == [[True, True, True], [True, True, False]]


def test_one_log_prob_an_action():
    layout = Layout(Elements((3,), action_axis=0), 3)
    expected = [[True, True, True], [True, True, False]]
    assert layout.mask(COUNTS, "token_level").tolist() == layout.mask(COUNTS, "action_level").tolist() == expected
    assert layout.reduce(REWARDS, COUNTS, "chunk_level").tolist() == [[1.5], [1.25]]


def test_a_chain_of_denoising_steps():
    # D = 2 steps of K = 3 actions of A = 1 number, numbered 1 … 6: action k of step d is 3d + k + 1.
    layout = Layout(Elements((2, 3, 1), action_axis=1), 3)
    values = torch.arange(1.0, 7.0).view(1, 2, 3, 1).repeat(2, 1, 1, 1)
    half = [True, True, False, True, True, False]
    assert layout.mask(COUNTS, "token_level").tolist() == [[True] * 6, half]
    assert layout.mask(COUNTS, "action_level").tolist() == [[True, True, True], [True, True, False]]
    # Action 0 is 1 + 4, action 1 is 2 + 5, action 2 is 3 + 6.
    assert layout.reduce(values, COUNTS, "action_level").tolist() == [[5, 7, 9], [5, 7, 0]]
    assert layout.reduce(values, COUNTS, "chunk_level").tolist() == [[21], [12]]
    per_action = torch.tensor([[1.0, 2.0, 3.0]])
    assert layout.spread(per_action, "token_level").tolist() == [[1, 2, 3, 1, 2, 3]]


def test_a_chain_that_ends_early_counts_steps_and_actions():
    # D = 2, K = 2, A = 1. Decision 0: both steps, one action. Decision 1: one step, both actions.
    layout = Layout(Elements((2, 2, 1), action_axis=1, length_axis=0), 2)
    counts = Counts(torch.tensor([1, 2]), torch.tensor([2, 1]))
    assert layout.mask(counts, "token_level").tolist() == [[True, False, True, False], [True, True, False, False]]
    assert layout.mask(counts, "action_level").tolist() == [[True, False], [True, True]]
    assert layout.reduce(torch.tensor([[1.0, 2, 4, 8]] * 2), counts, "chunk_level").tolist() == [[5], [3]]


def test_a_chain_with_one_log_prob_a_step_belongs_to_the_whole_chunk():
    layout = Layout(Elements((4,)), 3)
    assert layout.levels == ("token_level", "chunk_level")
    assert layout.mask(COUNTS, "token_level").tolist() == [[True] * 4] * 2
    assert layout.reduce(torch.ones(2, 4), COUNTS, "chunk_level").tolist() == [[4], [4]]
    with pytest.raises(ConfigError, match=r"algorithm.logprob_type is action_level, and this policy"):
        layout.check("action_level", "algorithm.logprob_type")
    with pytest.raises(ValueError, match="3 advantages a record for one ratio"):
        layout.spread(torch.zeros(1, 3), "token_level")


def test_text_counts_up_to_its_length():
    layout = Layout(Elements((5,), length_axis=0), 1)
    counts = Counts(torch.tensor([1, 1, 1]), torch.tensor([5, 3, 1]))
    expected = [[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4]
    assert layout.mask(counts, "token_level").tolist() == expected
    assert layout.mask(counts, "chunk_level").tolist() == [[True]] * 3
    values = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0], [1, 2, 4, NAN, NAN], [1, NAN, NAN, NAN, NAN]])
    assert layout.reduce(values, counts, "chunk_level").tolist() == [[31], [7], [1]]
    assert layout.spread(torch.tensor([[3.0]]), "token_level").tolist() == [[3.0] * 5]
    with pytest.raises(SpecMismatchError, match="no field 'length'"):
        layout.mask(Counts(torch.tensor([1])), "token_level")


def test_counts_are_taken_apart_and_keep_their_lengths():
    part = Counts(torch.tensor([1, 2, 3]), torch.tensor([7, 8, 9])).at(torch.tensor([2, 0]))
    assert (part.num_steps.tolist(), part.lengths.tolist(), len(part)) == ([3, 1], [9, 7], 2)
    assert Counts(torch.tensor([1, 2])).at(torch.tensor([1])).lengths is None


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
def test_logprobs_sum_to_their_level(level, expected):
    assert TOKENS.reduce(LOGPROBS, COUNTS, level).tolist() == expected
    assert TOKENS.reduce(LOGPROBS.view(2, 3, 2), COUNTS, level).tolist() == expected


@pytest.mark.parametrize("level", LEVELS)
def test_garbage_after_the_end_sends_no_gradient(level):
    logprobs = LOGPROBS.clone().requires_grad_()
    TOKENS.reduce(logprobs, COUNTS, level).exp().sum().backward()
    assert logprobs.grad[1, 4:].tolist() == [0.0, 0.0]
    assert torch.isfinite(logprobs.grad).all()


def test_advantages_spread_to_each_level():
    per_record, per_action = torch.tensor([[2.0], [-1.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    assert TOKENS.spread(per_record, "token_level").tolist() == [[2.0] * 6, [-1.0] * 6]
    assert TOKENS.spread(per_record, "action_level").tolist() == [[2.0] * 3, [-1.0] * 3]
    assert TOKENS.spread(per_record, "chunk_level").tolist() == [[2.0], [-1.0]]
    assert TOKENS.spread(per_action, "token_level").tolist() == [[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]]
    assert TOKENS.spread(per_action, "action_level").tolist() == [[1.0, 2.0, 3.0]]


def test_three_advantages_do_not_fit_one_ratio():
    with pytest.raises(ValueError, match="got 3 advantages a record for one ratio"):
        TOKENS.spread(torch.zeros(1, 3), "chunk_level")
    with pytest.raises(ValueError, match="expected 1 or K = 3"):
        TOKENS.spread(torch.zeros(1, 2), "token_level")


def test_a_chunk_of_one_action_has_one_advantage_whichever_way_it_is_named():
    single = Layout(Elements((1, 2), action_axis=0), 1)
    assert single.spread(torch.tensor([[4.0]]), "chunk_level").tolist() == [[4.0]]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (Elements((2, 2), action_axis=0), "no K = 3 entries on axis 0"),
        (Elements((3,), action_axis=1), "action_axis 1 of 1 axes"),
        (Elements((3,), length_axis=-1), "length_axis -1 of 1 axes"),
        (Elements((4,), levels=("action_level",)), "levels action_level"),
    ],
)
def test_elements_that_contradict_themselves(elements, message):
    with pytest.raises(SpecMismatchError, match=message):
        Layout(elements, 3)


def test_another_number_of_log_probs_is_a_broken_contract():
    with pytest.raises(SpecMismatchError, match=r"shape \(3, 2\), and it gives 5 values a decision"):
        TOKENS.reduce(LOGPROBS[:, :5], COUNTS, "token_level")


def test_unknown_levels_name_their_own_key():
    with pytest.raises(UnknownNameError, match=r"Did you mean 'token_level'(.|\n)*algorithm.logprob_type"):
        TOKENS.reduce(LOGPROBS, COUNTS, "token_levle")
    with pytest.raises(UnknownNameError, match=r"algorithm.entropy_type"):
        TOKENS.check("episode_level", "algorithm.entropy_type")


@settings(deadline=None)
@given(
    actions=st.integers(1, 4), dims=st.integers(1, 3), chain=st.integers(1, 3),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=5),
)  # fmt: skip
def test_levels_agree_on_the_sum_and_on_which_elements_count(actions, dims, chain, steps):
    num_steps = torch.tensor(steps).clamp(max=actions)
    layout = Layout(Elements((chain, actions, dims), action_axis=1), actions)
    logprobs = -torch.rand(len(steps), chain, actions, dims, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([row[:, :n].sum() for row, n in zip(logprobs, num_steps, strict=True)])
    for level in LEVELS:
        reduced, kept = layout.reduce(logprobs, Counts(num_steps), level), layout.mask(Counts(num_steps), level)
        assert reduced.shape == kept.shape == (len(steps), layout.width(level))
        assert not reduced[~kept].any()
        torch.testing.assert_close(reduced.sum(dim=1), expected)
