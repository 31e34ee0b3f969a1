"""What is taken from rewards, whom it makes no loser, and how long an episode may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied.algorithms.advantages.estimators import make_estimator
from embodied.algorithms.layout import Layout
from embodied.algorithms.rewards import Rewards
from embodied.learn.score.batches import gather_numbers, make_batch
from embodied.learn.score.reward_penalties import episode_penalties, longest, overlong
from embodied.schema import OverlongPenaltyConfig
from embodied.testing import FakePolicy, FakeTextPolicy
from embodied.types import Elements, Episode, EpisodeResult, Start

REWARDS = Rewards(Layout(Elements((3,), length_axis=0), 1), "chunk_level")


def episodes(returns: list[float], written: list[int] | None = None) -> list[EpisodeResult]:
    """Of two answers each, in the rows 2i and 2i + 1."""
    return [
        EpisodeResult(
            Episode(i, i // 2, Start(0, i, 0)), (2 * i, 2 * i + 1), value, value > 0, 2, True, False,
            written=None if written is None else written[i],
        )
        for i, value in enumerate(returns)
    ]  # fmt: skip


def records(returns: list[float]) -> dict[str, np.ndarray]:
    rewards = np.zeros((2 * len(returns), 1), np.float32)
    rewards[1::2, 0] = returns
    ones = np.ones(len(rewards), np.int32)
    return {"rewards": rewards, "num_steps": ones, "length": 2 * ones, "version": np.zeros(len(rewards), np.int64)}


def test_whether_an_episode_paid_is_asked_before_penalties():
    """A penalty can take more than was earned, and the KL's estimate k1 may give where nothing was."""
    returns, penalty = [1.0, 0.0, 0.5, -1.0], np.zeros((8, 1), np.float32)
    penalty[[1, 3, 5, 7], 0] = [-5.0, 5.0, 0.0, 2.0]
    results = episodes(returns)
    numbers = gather_numbers(records(returns), results, penalties=penalty)
    batch = make_batch(numbers, results, make_estimator("raw"), REWARDS)
    assert batch.positive.tolist() == [True, True, False, False, True, True, False, False]
    assert batch.advantages[::2, 0].tolist() == [-4.0, 5.0, 0.5, 1.0], "advantages are made of both"


@pytest.mark.parametrize(("most", "answers"), [(None, 6), (4, 4), (6, 6), (9, 6)])
def test_the_longest_episode_of_texts_has_its_longest_answer_at_every_turn(most, answers):
    """An answer ends where the record is full, however many tokens sampling allows."""
    for turns in (1, 3, 20):
        assert longest(FakeTextPolicy(6).spec, turns, most) == turns * answers
        assert longest(FakePolicy().spec, turns, most) == turns


def test_the_penalty_of_a_text_of_many_turns_grows_before_the_longest_there_may_be():
    """Three turns of four tokens: the limit is 12, and a buffer of 4 begins after 8."""
    config = OverlongPenaltyConfig(enable=True, buffer_length=4, factor=2.0)
    limit, results = longest(FakeTextPolicy(6).spec, 3, 4), episodes([1.0] * 4, written=[4, 8, 10, 12])
    assert episode_penalties(results, config, limit).tolist() == [0.0, 0.0, -1.0, -2.0]
    found = overlong(records([1.0] * 4), results, config, limit, REWARDS)
    assert found[:, 0].tolist() == [0, 0, 0, 0, 0, -1.0, 0, -2.0], "it stands at the episode's last reward"
    off = OverlongPenaltyConfig(buffer_length=4, factor=2.0)
    assert torch.equal(episode_penalties(results, off, limit), torch.zeros(4, dtype=torch.float64))


def test_control_steps_are_counted_where_no_text_is_written():
    config = OverlongPenaltyConfig(enable=True, buffer_length=2, factor=1.0)
    assert episode_penalties(episodes([1.0]), config, 2).tolist() == [-1.0]
