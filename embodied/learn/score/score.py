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
from embodied.algorithms.advantages.estimators import Estimate, Estimator, Experience, make_estimator
from embodied.algorithms.advantages.prefixes import common_prefixes
from embodied.algorithms.advantages.temporal import explained_variance
from embodied.algorithms.layout import Counts
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.learn.batch import Batch, counts_of
from embodied.learn.score.own_successes import FEATURES, OwnSuccesses
from embodied.learn.score.recompute import Recomputer
from embodied.learn.score.reward_penalties import RewardPenalties
from embodied.learn.score.start_memory import StartMemory
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.objective import Objective
from embodied.learn.step.passes import ForwardPasses, RankRecords, until_stopped
from embodied.learn.terms.term import Need, Setup
from embodied.learn.watch import Watch, unwatched
from embodied.parallel.group import Group
from embodied.parallel.modes import without_dropout
from embodied.schema import RewardConfig
from embodied.types import EpisodeResult, Start

OWN = "own_successes"

EpisodeNumbers = Mapping[str, np.ndarray]
"""What all ranks must know of one episode of T records: num_steps, length and version [T], rewards [T, K], value and
penalty [T, V]; final_value float64 [1], the value of its final observation; progress_features [T, 2, F] if they are
recorded."""


class Scored(NamedTuple):
    """An iteration's scored records: the whole batch, the part that is trained on, and this rank's records."""

    batch: Batch  # records of all episodes
    trained: Batch | None  # the episodes that ``filter_rewards`` keeps, with what the loss reads; None: it keeps none
    own: RankRecords  # this rank's records, with what was recomputed of them
    returns: Tensor | None  # float64 [E], of all episodes, with penalties; None: nobody remembers them


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
        compared = self._compared(results, returns, baselines)
        batch = make_batch(numbers, results, self.estimator, self._rewards, compared, self._bounds, least)
        if not kept:
            self._fetch(records, None)
            return Scored(batch, None, records, returns)
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
        return Scored(batch, trained, records, returns)

    def _compared(
        self, results: Sequence[EpisodeResult], returns: Tensor | None, greedy: Mapping[Start, float] | None
    ) -> Sequence[float] | None:
        """What the estimator takes off each episode's return; None if that is made of the returns themselves."""
        if self._algorithm.adv_type == "start_value":
            assert self._starts is not None
            assert returns is not None
            return self._starts.baselines(results, returns)
        return None if greedy is None else [greedy[result.episode.start] for result in results]

    def metrics(self) -> dict[str, float]:
        """Returns the ``train/`` metrics of what scoring remembers."""
        return {} if self._successes is None else self._successes.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Returns what scoring remembers of earlier iterations."""
        return {} if self._successes is None else {OWN: self._successes.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned; a state of another ``reward_mode`` has none."""
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


def gather_numbers(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], with_values: bool = False,
    penalties: np.ndarray | None = None, group: Group | None = None, with_texts: bool = False,
) -> list[EpisodeNumbers]:  # fmt: skip
    """Gathers from all ranks the numbers of each of ``results`` (:data:`EpisodeNumbers`). Pixels stay where they are.

    Args:
        arrays: of this rank's slab.
        with_values: the estimator reads values.
        penalties: added to the rewards, float32 [R, V] for all rows of the slab.
        group: the ranks that have the other records; all of them call it.
        with_texts: the tokens of each episode's first answer are read, as ``text``.

    Raises:
        ConfigError: ``with_texts``, and records hold no text.
    """
    if with_texts and not {"tokens", "length"} <= arrays.keys():
        raise ConfigError(
            "algorithm.min_filter_prefix_tokens is set, and the policy's records hold no tokens of texts",
            "leave algorithm.min_filter_prefix_tokens out",
        )
    group = group or Group()
    shared = arrays if penalties is None else {**arrays, "penalty": penalties}
    names = ["num_steps", "rewards", "version", *(["value"] if with_values else [])]
    names += [name for name in ("length", "penalty", FEATURES) if name in shared]
    own: dict[int, EpisodeNumbers] = {}
    for index, result in enumerate(results):
        if result.rank == group.rank:
            numbers = {name: shared[name][list(result.rows)] for name in names}
            final = arrays["value"][result.final_row, 0] if with_values and result.final_row >= 0 else 0.0
            if with_texts:
                first = result.rows[0]
                numbers["text"] = arrays["tokens"][first][: arrays["length"][first]]
            own[index] = {**numbers, "final_value": np.array([final], np.float64)}
    episodes = {index: numbers for part in group.gather(own) for index, numbers in part.items()}
    return [episodes[index] for index in range(len(results))]


def make_batch(
    episodes: Sequence[EpisodeNumbers], results: Sequence[EpisodeResult], estimator: Estimator, rewards: Rewards,
    baselines: Sequence[float] | None = None, bounds: tuple[float | None, float | None] | None = None,
    least: int | None = None,
) -> Batch:  # fmt: skip
    """Advantages from the records' rewards (and values), in the order of the plan; the same on all ranks.

    Args:
        episodes: what :func:`gather_numbers` gave of each of ``results``. Penalties are added to the rewards before
            advantages are made of them; whether a return is positive is asked without them.
        rewards: where a record's rewards stand (``algorithm.reward_type``); its advantages stand there, too.
        baselines: of each episode, for ``remax`` and ``start_value``.
        bounds: least and largest advantage (``advantage_clip_low``, ``advantage_clip_high``); None = all are kept.
        least: tokens that texts of different returns may begin with in common (``min_filter_prefix_tokens``).
    """
    numbers, lengths, counts = _joined(episodes, results)
    sequence_ids = torch.repeat_interleave(torch.arange(len(results)), lengths)
    mask, values = rewards.mask(counts), numbers.get("value")  # [N, V]
    task, penalised = _experience(numbers, counts, sequence_ids, results, rewards)
    experience = replace(
        penalised,
        values=None if values is None else values[mask],
        bootstrap=None if values is None else numbers["final_value"],
        baselines=None if baselines is None else torch.tensor(baselines, dtype=torch.float64),
    )
    estimate = estimator(experience)
    if bounds is not None:
        estimate = replace(estimate, values=estimate.values.clamp(*bounds))
    estimate = _weighted(estimate, results, experience.episode_ids)
    targets, explained = None, None
    if experience.values is not None and estimate.value_targets is not None:
        targets = _spread(estimate.value_targets, mask)
        explained = explained_variance(experience.values, estimate.value_targets)
    ranks, rows = places_of(results)
    return Batch(
        rows=rows,
        ranks=ranks,
        sequence_ids=sequence_ids,
        counts=counts,
        advantages=_spread(estimate.values, mask),
        positive=(task.returns > 0)[sequence_ids],
        versions=numbers["version"].long(),
        group_ids=task.group_ids[sequence_ids],
        groups=estimate.groups,
        value_targets=targets,
        explained_variance=explained,
        shared=None if least is None else _shared(episodes, task, lengths, least),
    )


def returns_of(episodes: Sequence[EpisodeNumbers], results: Sequence[EpisodeResult], rewards: Rewards) -> Tensor:
    """Returns that advantages are made of, with penalties: float64 [E]. Arguments as of :func:`make_batch`."""
    numbers, lengths, counts = _joined(episodes, results)
    sequence_ids = torch.repeat_interleave(torch.arange(len(results)), lengths)
    return _experience(numbers, counts, sequence_ids, results, rewards)[1].returns


def _joined(
    episodes: Sequence[EpisodeNumbers], results: Sequence[EpisodeResult]
) -> tuple[dict[str, Tensor], Tensor, Counts]:  # fmt: skip
    """The numbers of all records, how many each episode has, and what of them counts."""
    numbers = {name: torch.from_numpy(np.concatenate([e[name] for e in episodes])) for name in episodes[0]}
    counts = Counts(numbers["num_steps"].long(), numbers["length"].long() if "length" in numbers else None)
    return numbers, torch.tensor([len(result.rows) for result in results]), counts


def _experience(
    numbers: Mapping[str, Tensor], counts: Counts, sequence_ids: Tensor, results: Sequence[EpisodeResult],
    rewards: Rewards,
) -> tuple[Experience, Experience]:  # fmt: skip
    """The rewards that count: as the task gave them, and with penalties."""
    mask = rewards.mask(counts)
    task = Experience(
        rewards=rewards.reduce(numbers["rewards"], counts)[mask],
        episode_ids=sequence_ids[:, None].expand_as(mask)[mask],
        group_ids=torch.tensor([result.episode.group_id for result in results]),
    )
    if "penalty" not in numbers:
        return task, task
    return task, replace(task, rewards=task.rewards + numbers["penalty"][mask])


def _weighted(estimate: Estimate, results: Sequence[EpisodeResult], episode_ids: Tensor) -> Estimate:
    """Multiplies advantages by the weights of their episodes, so that starts drawn more often count less."""
    weights = torch.tensor([result.episode.weight for result in results])
    if bool((weights == 1).all()):
        return estimate
    return replace(estimate, values=estimate.values * weights[episode_ids])


def _shared(episodes: Sequence[EpisodeNumbers], task: Experience, lengths: Tensor, least: int) -> Tensor:
    """Counts each record's first elements that are left out, int64 [N]: only an episode's first answer has some."""
    texts = [episode["text"] for episode in episodes]
    found = torch.zeros(int(lengths.sum()), dtype=torch.int64)
    common = common_prefixes(texts, task.group_ids.numpy(), task.returns.numpy(), least)
    found[lengths.cumsum(0) - lengths] = torch.from_numpy(common)
    return found


def places_of(results: Sequence[EpisodeResult]) -> tuple[Tensor, np.ndarray]:
    """The rank of each record of ``results``, int64 [N], and its row in that rank's slab, int64 [N]."""
    ranks = torch.tensor([result.rank for result in results])
    rows = [np.asarray(result.rows, np.int64) for result in results]
    return ranks.repeat_interleave(torch.tensor([len(each) for each in rows])), np.concatenate(rows)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Puts ``values`` [n] where ``mask`` [N, V] is True, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter_(mask, values)


def _groups(results: Sequence[EpisodeResult]) -> set[int]:
    return {result.episode.group_id for result in results}
