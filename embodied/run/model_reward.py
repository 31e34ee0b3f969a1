"""Adds the scores of a reward model to the rewards of a rollout (``reward.use_reward_model``).

    episode ends ─▶ its prompt and last answer are kept ─▶ rollout ends ─▶ scores ─▶ last reward of each record's row,
                                                                                    return of each result

So advantages, filters and refills see the sum. Each process scores the episodes that it has run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embodied import schema
from embodied.errors import NumericalError
from embodied.protocols import RewardModel
from embodied.run.build import Model
from embodied.run.generations import Details, last_answer
from embodied.run.preflight import Checked
from embodied.types import EnvSpec, EpisodeResult


@dataclass(frozen=True)
class Answers:
    """Keeps prompt and last answer of each episode that ends, while its last row still stands in the slab.

    Args:
        arrays: the slab's.
        details: what is shown of an answer besides.
    """

    env: EnvSpec
    arrays: Mapping[str, np.ndarray]
    details: Details = field(default_factory=Details)
    found: dict[int, tuple[str, str]] = field(default_factory=dict)  # episode → prompt, answer
    shown: dict[int, dict[str, Any]] = field(default_factory=dict)  # episode → details

    def __call__(self, result: EpisodeResult) -> None:
        number = result.episode.episode_id
        self.found[number] = prompt, _ = last_answer(self.env, self.arrays, result)
        self.shown[number] = self.details(prompt, self.arrays, result.last_row)


class ModelReward:
    """Scores the answers of rollouts.

    Args:
        weight: factor on a score.
    """

    def __init__(self, model: RewardModel, weight: float) -> None:
        self.model, self._weight = model, weight

    def __call__(self, results: Sequence[EpisodeResult], answers: Answers) -> list[EpisodeResult]:
        """Adds the score of each episode's last answer to its last reward in the slab; returns the results with it.

        Raises:
            NumericalError: a score is not finite.
        """
        texts = [answers.found[result.episode.episode_id] for result in results]
        scores = self.model([prompt for prompt, _ in texts], [response for _, response in texts])
        for score, (prompt, response) in zip(scores, texts, strict=True):
            if not math.isfinite(score):
                raise NumericalError(
                    f"the reward model gave {score} for the answer {response[:80]!r} to {prompt[:80]!r}",
                    "look at the model: with reward.model.precision=fp32 16-bit overflows are out of the question",
                )
        arrays = answers.arrays
        return [self._paid(result, score, arrays) for result, score in zip(results, scores, strict=True)]

    def _paid(self, result: EpisodeResult, score: float, arrays: Mapping[str, np.ndarray]) -> EpisodeResult:
        paid = np.float32(self._weight * score)
        total = result.episode_return + float(paid)
        if result.rows:  # the records are kept: what is learned from stands there
            last = result.rows[-1]
            arrays["rewards"][last, arrays["num_steps"][last] - 1] += paid
            total = float(arrays["rewards"][list(result.rows)].sum(dtype=np.float64))
        return replace(result, episode_return=total, model_score=float(score))


def make_model_reward(checked: Checked, model: Model) -> ModelReward | None:
    """Builds the reward model on the policy's device; None if none is asked for.

    Raises:
        CheckpointError: its folder is missing or damaged, or holds something else.
    """
    config = checked.config.reward
    if not config.use_reward_model:
        return None
    build = schema.load_target(config.model.target, "reward.model._target_")
    made: RewardModel = build(**schema.target_kwargs(config.model, "reward.model"))
    return ModelReward(made.to(model.device), config.reward_model_weight)
