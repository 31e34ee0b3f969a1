"""Scores episodes: from slab rows to a training batch. Each thing is computed once; the trainer then only optimises.

rows ─▶ filter ─▶ penalties ─▶ gather over ranks ─▶ advantages ─▶ log-probs before the update ─▶ Scored
        groups    length, KL   rewards, values      value targets  (loss_type: tis, rollout.recompute_logprobs)
                               own successes

Where rewards or values are made of recomputed log-probs, those are made first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.advantages import filters
from embodied.algorithms.advantages.estimators import make_estimator
from embodied.learn.batch import Batch, counts_of
from embodied.learn.score.batches import EpisodeNumbers, gather_numbers, make_batch, places_of, returns_of
from embodied.learn.score.own_successes import OwnSuccesses
from embodied.learn.score.recompute import Recomputer
from embodied.learn.score.reward_penalties import RewardPenalties
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.objective import Objective
from embodied.learn.step.passes import ForwardPasses, RankRecords, until_stopped
from embodied.learn.terms.term import Need, Setup
from embodied.learn.watch import Watch, unwatched
from embodied.parallel.modes import without_dropout
from embodied.schema import RewardConfig
from embodied.types import EpisodeResult, Start

OWN, STARTS = "own_successes", "starts"


class Scored(NamedTuple):
    """An iteration's scored records: the whole batch, the part that is trained on, and this rank's records."""

    batch: Batch  # records of all episodes
    trained: Batch | None  # the episodes that ``filter_rewards`` keeps, with what the loss reads; None: it keeps none
    own: RankRecords  # this rank's records, with what was recomputed of them


class Scorer:
    """Scores the episodes of an iteration: penalties, filters, advantages.

    Args:
        size: records of a pass without gradients.
        starts: what starts are worth; None = nobody asks.
        successes: adds rewards for coming near to earlier successes; None = there are none such.
    """

    def __init__(
        self, setup: Setup, reward: RewardConfig, objective: Objective, size: int, starts: StartMemory | None = None,
        successes: OwnSuccesses | None = None,
    ) -> None:  # fmt: skip
        self._algorithm, self._objective, self._size = setup.algorithm, objective, size
        self._starts, self._successes = starts, successes
        self._returns: Tensor | None = None  # float64 [E], of the episodes last scored, with penalties
        algorithm = self._algorithm
        self.estimator = make_estimator(
            algorithm.adv_type, algorithm.adv_std_ddof, algorithm.gamma, algorithm.gae_lambda,
            algorithm.normalize_advantages,
        )  # fmt: skip
        bounds = algorithm.advantage_clip_low, algorithm.advantage_clip_high
        self._bounds = None if bounds == (None, None) else bounds
        self._penalties, self._rewards = RewardPenalties(setup, reward.overlong_penalty), setup.rewards
        values = Need.VALUES in objective.needs
        self._recompute = Recomputer(setup, values) if setup.recompute else None
        self._recompute_first = values or algorithm.use_kl_in_reward
        self._reads_all = algorithm.use_kl_in_reward or (self._recompute is not None and self._recompute_first)
        self._reads_sequences = self._recompute is not None or Need.DRIFT in objective.needs

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that scoring needs beside those of the objective's terms."""
        return self._penalties.needs

    def __call__(
        self, records: RankRecords, results: Sequence[EpisodeResult], evaluate: ForwardPasses,
        baselines: Mapping[Start, float] | None = None, metrics: UpdateMetrics | None = None, watch: Watch = unwatched,
    ) -> Scored:  # fmt: skip
        """Score ``results``, the episodes of all ranks in the plan's order. All ranks call it, and get the same.

        Args:
            records: this rank's of them.
            baselines: the return of a greedy episode from each start (``adv_type: remax``).
            metrics: what is measured on the way goes there.

        Raises:
            Stopped: on all ranks; ``watch`` has ended it on one.
        """
        metrics = metrics or UpdateMetrics()
        kept = self._kept(results)
        metrics.filtered = len(_groups(results)) - len(_groups([results[index] for index in kept]))
        if self._reads_all:
            records.fetch(records.rows)
        if self._recompute is not None and self._recompute_first:
            ranks, rows = places_of(results)
            everything = torch.ones(len(rows), dtype=torch.bool)
            records = self._recompute(records, ranks, everything, rows, evaluate, self._size, metrics, watch)
        penalties = self._penalties(records, evaluate, self._size, metrics, watch)
        with_values, group = Need.VALUES in self._objective.needs, records.parallel.group
        least = self._algorithm.min_filter_prefix_tokens
        numbers = gather_numbers(records.arrays, results, with_values, penalties, group, least is not None)
        if self._successes is not None:
            numbers = self._successes(numbers, [self._counting(episode) for episode in numbers], results)
        returns = None if self._starts is None else returns_of(numbers, results, self._rewards)
        self._returns, compared = returns, self._compared(results, returns, baselines)
        batch = make_batch(numbers, results, self.estimator, self._rewards, compared, self._bounds, least)
        if not kept:
            self._fetch(records, None)
            return Scored(batch, None, records)
        trained = batch
        if len(kept) < len(results):
            some = [results[index] for index in kept]
            of_kept = [numbers[index] for index in kept]
            compared = compared and [compared[index] for index in kept]
            trained = make_batch(of_kept, some, self.estimator, self._rewards, compared, self._bounds, least)
        self._fetch(records, trained)
        if self._recompute is not None and not self._recompute_first:
            chosen = self._read_by_the_loss(trained)
            records = self._recompute(
                records, trained.ranks, chosen, trained.rows, evaluate, self._size, metrics, watch
            )
        if Need.PROXIMAL in self._objective.needs:
            trained = self._with_proximal(records, trained, evaluate, watch)
        return Scored(batch, trained, records)

    def _compared(
        self, results: Sequence[EpisodeResult], returns: Tensor | None, greedy: Mapping[Start, float] | None
    ) -> Sequence[float] | None:
        """What the estimator takes off each episode's return; None if that is made of the returns themselves."""
        if self._algorithm.adv_type == "start_value":
            assert self._starts is not None
            assert returns is not None
            return self._starts.baselines(results, returns)
        return None if greedy is None else [greedy[result.episode.start] for result in results]

    def learn(self, results: Sequence[EpisodeResult], iteration: int) -> None:
        """Remembers what the starts of ``results``, which were scored last, have returned."""
        if self._starts is not None and self._returns is not None:
            self._starts.learn(results, self._returns, iteration)

    def metrics(self) -> dict[str, float]:
        """Returns the ``train/`` metrics of what scoring remembers."""
        found = {} if self._starts is None else self._starts.metrics
        return found if self._successes is None else {**found, **self._successes.metrics()}

    def state_dict(self) -> dict[str, Any]:
        """Returns what scoring remembers of earlier iterations."""
        state: dict[str, Any] = {} if self._starts is None else {STARTS: self._starts.state_dict()}
        return state if self._successes is None else {**state, OWN: self._successes.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned; a state of another ``reward_mode`` or ``adv_type`` lacks some."""
        if self._starts is not None:
            self._starts.load_state_dict(state.get(STARTS, {}))
        if self._successes is not None and OWN in state:
            self._successes.load_state_dict(state[OWN])

    def _counting(self, episode: EpisodeNumbers) -> np.ndarray:
        """Which rewards of an episode count, bool [T, V]."""
        return self._rewards.mask(counts_of(episode, np.arange(len(episode["num_steps"])))).numpy()

    def _fetch(self, records: RankRecords, trained: Batch | None) -> None:
        """Gets what passes read of records, where other processes have collected them."""
        if self._reads_all or not records.are_elsewhere:
            return
        rows = records.placeholder if records.parallel.collective_passes else np.zeros(0, np.int64)
        if trained is not None:
            chosen = self._read_by_the_loss(trained) if self._reads_sequences else self._carries_gradient(trained)
            rows = np.concatenate([rows, trained.rows[records.among(trained.ranks, chosen).numpy()]])
        records.fetch(rows)

    def _read_by_the_loss(self, batch: Batch) -> Tensor:
        """Records of sequences with a record that carries a gradient, bool [N]."""
        keep, ids = self._carries_gradient(batch), batch.sequence_ids
        return torch.isin(ids, ids[keep])

    def _carries_gradient(self, batch: Batch) -> Tensor:
        objective = self._objective
        return objective.carries_gradient(objective.optimizer_batch(batch, torch.arange(len(batch))))

    def _kept(self, results: Sequence[EpisodeResult]) -> list[int]:
        """Indices of the episodes whose group's mean return lies within the bounds of ``filter_rewards``."""
        algorithm = self._algorithm
        if not algorithm.filter_rewards:
            return list(range(len(results)))
        returns = torch.tensor([result.episode_return for result in results], dtype=torch.float64)
        ids = torch.tensor([result.episode.group_id for result in results])
        keep = filters.within_bounds(returns, ids, algorithm.rewards_lower_bound, algorithm.rewards_upper_bound)
        return keep.nonzero().flatten().tolist()

    def _with_proximal(self, own: RankRecords, batch: Batch, evaluate: ForwardPasses, watch: Watch) -> Batch:
        """The batch with log-probs of the policy before this iteration's first update."""
        found = torch.zeros(len(batch), self._objective.layout.size)
        parts = own.parts(batch.ranks, self._carries_gradient(batch), batch.rows, self._size, forward_only=True)
        dropout = without_dropout(own.policy)
        with torch.no_grad(), dropout, watch("log-probs before the update", sum(map(len, parts))) as passed:
            for part, _ in until_stopped(parts, passed, own.parallel):
                logprobs = evaluate(own.gather(batch.rows[part.numpy()])).logprobs
                found[part] = logprobs[: len(part)].flatten(1).float().cpu()
        return replace(batch, proximal=found)


def _groups(results: Sequence[EpisodeResult]) -> set[int]:
    return {result.episode.group_id for result in results}
