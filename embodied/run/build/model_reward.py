"""Adds the scores of a reward model to the rewards of a rollout (``reward.use_reward_model``).

    episode ends ─▶ its prompt and last answer are kept ─▶ rollout ends ─▶ scores ─▶ last reward of each record's row,
                                                                                    return of each result

So advantages, filters and refills see the sum. Each process scores the episodes that it has run: by itself, or, where
each holds a part of the reward model, all at one time (:class:`TogetherReward`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embodied import schema
from embodied.errors import NumericalError
from embodied.parallel.barrier import Interruptible
from embodied.parallel.collectives import together
from embodied.parallel.group import Group
from embodied.parallel.reward_shards import RewardShards, check_can_shard, shares_text, units_in
from embodied.protocols import RewardModel
from embodied.run.build.policy import Model
from embodied.run.build.texts import Details, last_answer
from embodied.types import EnvSpec, EpisodeResult


@dataclass(frozen=True)
class Answers:
    """Collects, for a reward model, prompt and last answer of each episode that ends, while its last row still stands
    in the slab.

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
    """Scores rollouts' text answers with a reward model and adds the weighted scores to the rewards.

    Args:
        weight: factor on a score.
        held: who holds what of the model, for the console; empty = each process holds all of it.
    """

    together = False  # True: all processes call it at the same time

    def __init__(self, model: RewardModel, weight: float, held: str = "") -> None:
        self._model, self._weight, self._held = model, weight, held

    def describe(self) -> Mapping[str, str]:
        """Returns a few facts on the reward model for the console."""
        return {**self._model.describe(), **({"processes": self._held} if self._held else {})}

    def __call__(
        self, results: Sequence[EpisodeResult], answers: Answers, stop: Interruptible
    ) -> list[EpisodeResult]:  # fmt: skip
        """Adds the score of each episode's last answer to its last reward in the slab; returns the results with it.

        Args:
            stop: read where processes score together, because a signal may then end no pass.

        Raises:
            NumericalError: a score is not finite.
            Stopped: in all processes that score together, after a pass; a signal has come in one.
        """
        texts = [answers.found[result.episode.episode_id] for result in results]
        scores = self._finite([prompt for prompt, _ in texts], [response for _, response in texts], stop)
        arrays = answers.arrays
        return [self._paid(result, score, arrays) for result, score in zip(results, scores, strict=True)]

    def _finite(self, prompts: Sequence[str], responses: Sequence[str], stop: Interruptible) -> Sequence[float]:
        scores = self._model(prompts, responses)
        check_finite(scores, prompts, responses)
        return scores

    def _paid(self, result: EpisodeResult, score: float, arrays: Mapping[str, np.ndarray]) -> EpisodeResult:
        paid = np.float32(self._weight * score)
        total = result.episode_return + float(paid)
        if result.rows:  # the records are kept: what is learned from stands there
            last = result.rows[-1]
            arrays["rewards"][last, arrays["num_steps"][last] - 1] += paid
            total = float(arrays["rewards"][list(result.rows)].sum(dtype=np.float64))
        return replace(result, episode_return=total, model_score=float(score))


class TogetherReward(ModelReward):
    """Scores the answers of all processes at one time with a reward model of which each process holds a part."""

    together = True

    def __init__(self, shards: RewardShards, weight: float) -> None:
        super().__init__(shards.model, weight, str(shards))
        self._shards = shards

    def _finite(self, prompts: Sequence[str], responses: Sequence[str], stop: Interruptible) -> Sequence[float]:
        scores = self._shards(prompts, responses, stop)
        together(lambda: check_finite(scores, prompts, responses))
        return scores


def check_finite(scores: Sequence[float], prompts: Sequence[str], responses: Sequence[str]) -> None:
    """Raises :class:`NumericalError` if a score is not finite."""
    for score, prompt, response in zip(scores, prompts, responses, strict=True):
        if not math.isfinite(score):
            raise NumericalError(
                f"the reward model gave {score} for the answer {response[:80]!r} to {prompt[:80]!r}",
                "look at the model: with reward.model.precision=fp32 16-bit overflows are out of the question",
            )


def make_model_reward(config: schema.RewardConfig, processes: Group, model: Model, dry: bool) -> ModelReward | None:
    """Builds the reward model on the policy's device, or shares it out over the processes; None if none is asked for.

    Args:
        dry: it is only looked at.

    Raises:
        CheckpointError: its folder is missing or damaged, or holds something else.
        ConfigError: it is to be shared out, and cannot be.
        RanksDifferError: it is shared out, and the processes have read different weights.
    """
    group = processes.of("rollout")
    if not config.use_reward_model or not group.here:
        return None
    build = schema.load_target(config.model.target, "reward.model._target_")
    made: RewardModel = build(**schema.target_kwargs(config.model, "reward.model"))
    if not config.model.sharded:
        return ModelReward(made.to(model.device), config.reward_model_weight)
    shardable, least = check_can_shard(made), config.model.wrap_policy.min_num_params
    if group.size == 1:
        return ModelReward(made.to(model.device), config.reward_model_weight, "one, which holds all of it")
    if dry:  # processes are not connected, and the device may have room for a part alone
        return ModelReward(made, config.reward_model_weight, shares_text(group.size, units_in(shardable, least)))
    return TogetherReward(RewardShards(shardable, least, group, model.device), config.reward_model_weight)
