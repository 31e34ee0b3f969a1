"""Where rewards stand, and what belongs to each, against placements done by hand."""

import pytest
import torch

from embodied.algorithms.layout import Counts, Layout
from embodied.algorithms.rewards import REWARD_LEVELS, Rewards
from embodied.errors import ConfigError, UnknownNameError
from embodied.types import Elements

NAN = float("nan")
# N = 2 decisions, K = 3 actions of A = 2 tokens; decision 1 executed two of its three actions.
TOKENS, COUNTS = Layout(Elements((3, 2), action_axis=0), 3), Counts(torch.tensor([3, 2]))
LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], [-0.5, -0.25, -1.0, -2.0, NAN, float("inf")]])
REWARDS = torch.tensor([[0.0, 0.5, 1.0], [0.25, 1.0, NAN]])
# Texts of up to 4 tokens; they have 4, 1 and 3.
TEXTS, LENGTHS = Layout(Elements((4,), length_axis=0), 1), Counts(torch.tensor([1, 1, 1]), torch.tensor([4, 1, 3]))


def test_rewards_of_a_chunk_are_summed_over_executed_steps():
    # 0 + .5 + 1 = 1.5; .25 + 1 = 1.25, the NaN was never executed.
    chunk, action = (Rewards(TOKENS, level) for level in ("chunk_level", "action_level"))
    assert (chunk.width, action.width) == (1, 3)
    assert chunk.reduce(REWARDS, COUNTS).tolist() == [[1.5], [1.25]]
    assert action.reduce(REWARDS, COUNTS).tolist() == [[0.0, 0.5, 1.0], [0.25, 1.0, 0.0]]
    assert chunk.mask(COUNTS).tolist() == [[True], [True]]
    assert action.mask(COUNTS).tolist() == [[True, True, True], [True, True, False]]


def test_the_reward_of_a_text_stands_at_its_last_token():
    tokens = Rewards(TEXTS, "token_level")
    assert tokens.width == 4
    assert tokens.reduce(torch.tensor([[2.0], [-1.0], [0.5]]), LENGTHS).tolist() == [
        [0, 0, 0, 2], [-1, 0, 0, 0], [0, 0, 0.5, 0],
    ]  # fmt: skip
    assert tokens.mask(LENGTHS).tolist() == [[True] * 4, [True] + [False] * 3, [True] * 3 + [False]]


@pytest.mark.parametrize(
    ("level", "reward_type", "expected"),
    [
        # K-major: action 0 is tokens 0 and 1. −1−2 = −3, −3−4 = −7, −5−6 = −11; −.75, −3.
        ("token_level", "chunk_level", [[-21], [-3.75]]),
        ("token_level", "action_level", [[-3, -7, -11], [-0.75, -3, 0]]),
        ("action_level", "action_level", [[-3, -7, -11], [-0.75, -3, 0]]),
        ("chunk_level", "chunk_level", [[-21], [-3.75]]),
    ],
)
def test_elements_add_up_to_their_rewards(level, reward_type, expected):
    assert Rewards(TOKENS, reward_type).sum(TOKENS.reduce(LOGPROBS, COUNTS, level), level).tolist() == expected


def test_a_token_s_element_is_all_that_belongs_to_its_reward():
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 0.0, 0.0, 0.0]])
    assert Rewards(TEXTS, "token_level").sum(values, "token_level").tolist() == values.tolist()
    assert Rewards(TEXTS, "chunk_level").sum(values, "token_level").tolist() == [[10], [5]]
    assert TEXTS.spread(values, "token_level").tolist() == values.tolist()


def test_a_chunk_of_one_action_has_one_reward_whichever_way_it_is_named():
    single = Layout(Elements((1, 2), action_axis=0), 1)
    assert Rewards(single, "action_level").sum(torch.tensor([[4.0]]), "chunk_level").tolist() == [[4.0]]


def test_one_element_has_no_parts_for_several_rewards():
    with pytest.raises(ValueError, match="one element a record, and K = 3 rewards"):
        Rewards(TOKENS, "action_level").sum(torch.zeros(1, 1), "chunk_level")
    with pytest.raises(ValueError, match="elements at chunk_level, and a reward for each of 4 tokens"):
        Rewards(TEXTS, "token_level").sum(torch.zeros(1, 1), "chunk_level")
    with pytest.raises(ValueError, match="one ratio"):
        Layout(Elements((3,)), 3).spread(torch.zeros(1, 3), "token_level")


def test_rewards_of_tokens_are_for_texts():
    for elements in (Elements((3, 2), action_axis=0), Elements((3,), action_axis=0), Elements((3,))):
        with pytest.raises(ConfigError, match="this policy's decisions are no texts"):
            Rewards(Layout(elements, 3), "token_level")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'token_level'(.|\n)*algorithm.reward_type"):
        Rewards(TEXTS, "token_levle")
    assert [Rewards(TEXTS, level).width for level in REWARD_LEVELS] == [1, 1, 4]
