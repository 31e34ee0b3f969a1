"""The numbers of episodes from all ranks, and the training batch that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.advantages.estimators import Estimate, Estimator, Experience
from embodied.algorithms.advantages.prefixes import common_prefixes
from embodied.algorithms.advantages.temporal import explained_variance
from embodied.algorithms.layout import Counts
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.learn.batch import Batch
from embodied.learn.score.own_successes import FEATURES
from embodied.parallel.group import Group
from embodied.types import EpisodeResult

EpisodeNumbers = Mapping[str, np.ndarray]
"""What all ranks must know of one episode of T records: num_steps, length and version [T], rewards [T, K], value and
penalty [T, V]; final_value float64 [1], the value of its final observation; progress_features [T, 2, F] if they are
recorded."""


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
