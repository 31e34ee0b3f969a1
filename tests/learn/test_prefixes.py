"""What texts have in common (``min_filter_prefix_tokens``) and bounds of advantages (``advantage_clip_*``)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied.algorithms.advantages.estimators import make_estimator
from embodied.algorithms.advantages.prefixes import common_prefixes
from embodied.algorithms.layout import Layout
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.learn.score.batches import gather_numbers, make_batch
from embodied.learn.step.objective import Objective
from embodied.learn.terms.term import Setup
from embodied.schema import AlgorithmConfig
from embodied.types import ArraySpec, Elements, Episode, EpisodeResult, Noise, PolicySpec, Start

TEXTS = [[5, 6, 7, 8], [5, 6, 9, 9], [5, 6, 7, 1], [5, 5, 5, 5]]
REWARDS = [1.0, 0.0, 1.0, 0.0]
LAYOUT = Layout(Elements((4,), length_axis=0), 1)


def collected():
    arrays = {
        "num_steps": np.ones(4, np.int64), "length": np.array([4, 4, 4, 3]), "version": np.zeros(4, np.int64),
        "rewards": np.array(REWARDS, np.float32)[:, None], "tokens": np.array(TEXTS, np.int32),
    }  # fmt: skip
    episodes = [Episode(number, 0, Start(0, 0, 0)) for number in range(4)]
    pairs = zip(episodes, REWARDS, strict=True)
    return arrays, [EpisodeResult(one, (one.episode_id,), gain, False, 1, True, False) for one, gain in pairs]


def batch_of(**keys):
    arrays, results = collected()
    numbers = gather_numbers(arrays, results, with_texts=True)
    return make_batch(numbers, results, make_estimator("dr_grpo"), Rewards(LAYOUT, "chunk_level"), **keys)


@pytest.mark.parametrize(("least", "wanted"), [(1, [2, 2, 2, 0]), (2, [0, 0, 0, 0])])
def test_what_a_right_and_a_wrong_answer_begin_with_does_not_count(least, wanted):
    batch = batch_of(least=least)
    assert batch.shared.tolist() == wanted
    algorithm = AlgorithmConfig(kl_beta=0, loss_agg_func="token-mean", clip_ratio_c=None)
    fields = {"logprobs": ArraySpec((4,), "float32")}
    spec = PolicySpec(1, fields, Elements((4,), length_axis=0), Noise((4,), "uniform"))
    made = Objective(Setup(spec, algorithm, 1, lambda: 0.0)).optimizer_batch(batch, torch.tensor([0, 3, 1]))
    first = [wanted[0], wanted[3], wanted[1]]
    lengths = [4, 3, 4]
    expected = [[n <= at < length for at in range(4)] for n, length in zip(first, lengths, strict=True)]
    assert made.mask.tolist() == expected
    assert made.weights.sum() == pytest.approx(1)
    assert (made.weights > 0).tolist() == expected


def test_without_the_key_all_tokens_count():
    assert batch_of().shared is None


def test_a_text_is_compared_with_its_group_and_other_scores_alone():
    texts = [np.array([1, 2, 3]), np.array([1, 2, 3]), np.array([1, 2, 3, 4])]
    assert common_prefixes(texts, np.zeros(3), np.ones(3), 1).tolist() == [0, 0, 0]
    assert common_prefixes(texts, np.array([0, 1, 1]), np.array([0, 1, 2]), 2).tolist() == [0, 3, 3]
    assert common_prefixes(texts, np.array([0, 1, 1]), np.array([0, 1, 2]), 0).tolist() == [0, 3, 3], "alone: nothing"


def test_records_without_texts_are_refused():
    arrays, results = collected()
    del arrays["tokens"]
    with pytest.raises(ConfigError, match="hold no tokens of texts"):
        gather_numbers(arrays, results, with_texts=True)


def test_advantages_are_kept_within_their_bounds():
    assert batch_of().advantages[:, 0].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert batch_of(bounds=(-0.25, None)).advantages[:, 0].tolist() == [0.5, -0.25, 0.5, -0.25]
    assert batch_of(bounds=(None, 0.125)).advantages[:, 0].tolist() == [0.125, -0.5, 0.125, -0.5]
