"""The scoring room: from slab rows to a training batch. Each thing is computed once; the trainer then only optimises.

rows ─▶ filter ─▶ penalties ─▶ gather over ranks ─▶ advantages ─▶ log-probs before the update ─▶ Scored
        groups    length, KL   rewards, values      value targets  (loss_type: tis)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms import filters, layout
from embodied.algorithms.estimators import Estimator, Experience, make_estimator
from embodied.algorithms.layout import Counts
from embodied.algorithms.temporal import explained_variance
from embodied.learn.batch import Batch
from embodied.learn.objective import Objective
from embodied.learn.passes import Evaluator, OwnRecords, until_stopped
from embodied.learn.reward_penalties import RewardPenalties
from embodied.learn.terms.term import Need, Setup
from embodied.learn.update_metrics import UpdateMetrics
from embodied.learn.watch import Watch, unwatched
from embodied.parallel.group import Group
from embodied.schema import RewardConfig
from embodied.types import EpisodeResult, Start

EpisodeNumbers = Mapping[str, np.ndarray]
"""What all ranks must know of one episode of T records: num_steps, length and version [T], rewards [T, K], value and
penalty [T, V]; final_value float64 [1], the value of its final observation."""


class Scored(NamedTuple):
    """What an iteration is worth."""

    batch: Batch  # of all episodes
    trained: Batch | None  # of those that ``filter_rewards`` keeps, with what the loss reads; None: it keeps none


class Scorer:
    """Scores the episodes of one iteration after another.

    Args:
        size: records of a pass without gradients.
    """

    def __init__(self, setup: Setup, reward: RewardConfig, objective: Objective, size: int) -> None:
        self._algorithm, self._objective, self._size = setup.algorithm, objective, size
        algorithm = self._algorithm
        self.estimator = make_estimator(
            algorithm.adv_type, algorithm.adv_std_ddof, algorithm.gamma, algorithm.gae_lambda,
            algorithm.normalize_advantages,
        )  # fmt: skip
        self._penalties = RewardPenalties(setup, reward.overlong_penalty)

    @property
    def needs(self) -> frozenset[Need]:
        """What scoring reads beside what the objective's terms read."""
        return self._penalties.needs

    def __call__(
        self, own: OwnRecords, results: Sequence[EpisodeResult], evaluate: Evaluator,
        baselines: Mapping[Start, float] | None = None, metrics: UpdateMetrics | None = None, watch: Watch = unwatched,
    ) -> Scored:  # fmt: skip
        """Score ``results``, the episodes of all ranks in the plan's order. All ranks call it, and get the same.

        Args:
            own: this rank's of them.
            baselines: the return of a greedy episode from each start (``adv_type: remax``).
            metrics: what is measured on the way goes there.

        Raises:
            Stopped: on all ranks; ``watch`` has ended it on one.
        """
        metrics = metrics or UpdateMetrics()
        group, reward_type = own.parallel.group, self._algorithm.reward_type
        kept = self._kept(results)
        metrics.filtered = len(_groups(results)) - len(_groups([results[index] for index in kept]))
        penalties = self._penalties(own, evaluate, self._size, metrics, watch)
        numbers = gather_numbers(own.arrays, results, Need.VALUES in self._objective.needs, penalties, group)
        batch = make_batch(numbers, results, self.estimator, reward_type, baselines)
        if not kept:
            return Scored(batch, None)
        trained = batch
        if len(kept) < len(results):
            some = [results[index] for index in kept]
            trained = make_batch([numbers[index] for index in kept], some, self.estimator, reward_type, baselines)
        if Need.PROXIMAL in self._objective.needs:
            trained = self._with_proximal(own, trained, evaluate, watch)
        return Scored(batch, trained)

    def _kept(self, results: Sequence[EpisodeResult]) -> list[int]:
        """Indices of the episodes whose group's mean return lies within the bounds of ``filter_rewards``."""
        algorithm = self._algorithm
        if not algorithm.filter_rewards:
            return list(range(len(results)))
        returns = torch.tensor([result.episode_return for result in results], dtype=torch.float64)
        ids = torch.tensor([result.episode.group_id for result in results])
        keep = filters.within_bounds(returns, ids, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)
        return keep.nonzero().flatten().tolist()

    def _with_proximal(self, own: OwnRecords, batch: Batch, evaluate: Evaluator, watch: Watch) -> Batch:
        """The batch with log-probs of the policy before this iteration's first update."""
        found = torch.zeros(len(batch), self._objective.layout.size)
        everything = self._objective.optimizer_batch(batch, torch.arange(len(batch)))
        parts = own.parts(batch.ranks, self._objective.carries_gradient(everything), batch.rows, self._size)
        with torch.no_grad(), watch("log-probs before the update", sum(map(len, parts))) as passed:
            for part, _ in until_stopped(parts, passed, own.parallel):
                logprobs = evaluate(own.gather(batch.rows[part.numpy()])).logprobs
                found[part] = logprobs[: len(part)].flatten(1).float().cpu()
        return replace(batch, proximal=found)


def gather_numbers(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], with_values: bool = False,
    penalties: np.ndarray | None = None, group: Group | None = None,
) -> list[EpisodeNumbers]:  # fmt: skip
    """What all ranks must know of each of ``results``. Pixels stay where they are.

    Args:
        arrays: of this rank's slab.
        with_values: the estimator reads values.
        penalties: added to the rewards, float32 [R, V] for all rows of the slab.
        group: the ranks that have the other records; all of them call it.
    """
    group = group or Group()
    shared = arrays if penalties is None else {**arrays, "penalty": penalties}
    names = ["num_steps", "rewards", "version", *(["value"] if with_values else [])]
    names += [name for name in ("length", "penalty") if name in shared]
    own: dict[int, EpisodeNumbers] = {}
    for index, result in enumerate(results):
        if result.rank == group.rank:
            numbers = {name: shared[name][list(result.rows)] for name in names}
            final = arrays["value"][result.final_row, 0] if with_values and result.final_row >= 0 else 0.0
            own[index] = {**numbers, "final_value": np.array([final], np.float64)}
    episodes = {index: numbers for part in group.gather(own) for index, numbers in part.items()}
    return [episodes[index] for index in range(len(results))]


def make_batch(
    episodes: Sequence[EpisodeNumbers], results: Sequence[EpisodeResult], estimator: Estimator, reward_type: str,
    baselines: Mapping[Start, float] | None = None,
) -> Batch:  # fmt: skip
    """Advantages from the records' rewards (and values), in the order of the plan; the same on all ranks.

    Args:
        episodes: what :func:`gather_numbers` gave of each of ``results``. Penalties are added to the rewards before
            advantages are made of them; whether a return is positive is asked without them.
        reward_type: ``algorithm.reward_type``: one advantage a record, or one an action.
        baselines: the return of a greedy episode from each start; for ``remax``.
    """
    numbers = {name: torch.from_numpy(np.concatenate([e[name] for e in episodes])) for name in episodes[0]}
    lengths = torch.tensor([len(result.rows) for result in results])
    sequence_ids = torch.repeat_interleave(torch.arange(len(results)), lengths)
    num_steps = numbers["num_steps"].long()
    rewards = layout.reduce_rewards(numbers["rewards"], num_steps, reward_type)  # [N, V]
    mask = layout.reward_mask(num_steps, numbers["rewards"].shape[1], reward_type)  # [N, V]
    values = numbers.get("value")
    task = Experience(
        rewards=rewards[mask],
        episode_ids=sequence_ids[:, None].expand_as(mask)[mask],
        group_ids=torch.tensor([result.episode.group_id for result in results]),
        values=None if values is None else values[mask],
        bootstrap=None if values is None else numbers["final_value"],
        baselines=None if baselines is None else _baselines(results, baselines),
    )
    experience = task
    if "penalty" in numbers:
        experience = replace(task, rewards=task.rewards + numbers["penalty"][mask])
    estimate = estimator(experience)
    targets, explained = None, None
    if experience.values is not None and estimate.value_targets is not None:
        targets = _spread(estimate.value_targets, mask)
        explained = explained_variance(experience.values, estimate.value_targets)
    return Batch(
        rows=np.concatenate([np.asarray(result.rows, np.int64) for result in results]),
        ranks=torch.tensor([result.rank for result in results])[sequence_ids],
        sequence_ids=sequence_ids,
        counts=Counts(num_steps, numbers["length"].long() if "length" in numbers else None),
        advantages=_spread(estimate.values, mask),
        positive=(task.returns > 0)[sequence_ids],
        versions=numbers["version"].long(),
        groups=estimate.groups,
        value_targets=targets,
        explained_variance=explained,
    )


def _baselines(results: Sequence[EpisodeResult], baselines: Mapping[Start, float]) -> Tensor:
    """The baseline of each episode, float64 [E]."""
    return torch.tensor([baselines[result.episode.start] for result in results], dtype=torch.float64)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Puts ``values`` [n] where ``mask`` [N, V] is True, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter_(mask, values)


def _groups(results: Sequence[EpisodeResult]) -> set[int]:
    return {result.episode.group_id for result in results}
