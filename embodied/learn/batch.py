"""What the trainer sees of an iteration: which slab rows are records, whose episode they are, and their advantages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms import filters, layout
from embodied.algorithms.advantages import Advantages
from embodied.algorithms.estimators import Estimator, Experience
from embodied.algorithms.layout import Counts
from embodied.algorithms.temporal import explained_variance
from embodied.parallel.group import Group as World
from embodied.random import Stream, generator
from embodied.types import EpisodeResult, Start


@dataclass(frozen=True)
class Batch:
    """N records of E episodes, ordered by episode of the plan and then by time, whatever order they were made in.

    V = 1 or K rewards a record (``algorithm.reward_type``); what stands at steps that were not executed is 0.
    """

    rows: np.ndarray  # int64 [N], rows of the slab of the rank that has the record
    ranks: Tensor  # int64 [N], that rank
    sequence_ids: Tensor  # int64 [N], index of the record's episode in the plan
    counts: Counts  # of each record: executed control steps, and lengths if its elements have them
    advantages: Tensor  # float32 [N, V]
    positive: Tensor  # bool [N], the record's episode has a return above 0
    groups: Advantages  # what was found about the groups
    value_targets: Tensor | None  # float32 [N, V], what the value head should have said; None if none is trained
    explained_variance: float | None  # of the values at action time
    proximal: Tensor | None = None  # float32 [N, M₀], log-probs when the update began; None if no loss reads them

    def __len__(self) -> int:
        return len(self.rows)


def make_batch(
    arrays: Mapping[str, np.ndarray],
    results: Sequence[EpisodeResult],
    estimator: Estimator,
    reward_type: str,
    with_values: bool = False,
    penalties: np.ndarray | None = None,
    baselines: Mapping[Start, float] | None = None,
    world: World | None = None,
) -> Batch:
    """Advantages from the records' rewards (and values), in the order of the plan; the same on all ranks.

    Args:
        arrays: the slab's arrays.
        results: all episodes of the iteration, of all ranks, in the plan's order, with their rows.
        reward_type: ``algorithm.reward_type``: one advantage a record, or one an action.
        with_values: the estimator reads values, and the value head is to be trained.
        penalties: added to the rewards before anything else is made of them, float32 [R, V] for all rows of the slab
            (:mod:`embodied.learn.shaping`). Whether a return is positive is asked without them.
        baselines: the return of a greedy episode from each start; for ``remax``.
        world: the ranks that have the other records; they meet here.
    """
    added = {} if penalties is None else {"penalty": penalties}
    numbers = _numbers({**arrays, **added}, results, with_values, world or World())
    rows = np.concatenate([np.asarray(result.rows, np.int64) for result in results])
    lengths = torch.tensor([len(result.rows) for result in results])
    sequence_ids = torch.repeat_interleave(torch.arange(len(results)), lengths)
    ranks = torch.tensor([result.rank for result in results])
    num_steps = numbers["num_steps"].long()
    counts = Counts(num_steps, numbers["length"].long() if "length" in numbers else None)
    chunk = numbers["rewards"].shape[1]
    rewards = layout.reduce_rewards(numbers["rewards"], num_steps, reward_type)  # [N, V]
    mask = layout.reward_mask(num_steps, chunk, reward_type)  # [N, V]
    values = numbers["value"] if with_values else None
    task = Experience(
        rewards=rewards[mask],
        episode_ids=sequence_ids[:, None].expand_as(mask)[mask],
        group_ids=torch.tensor([result.episode.group_id for result in results]),
        values=None if values is None else values[mask],
        bootstrap=numbers["final_value"] if with_values else None,
        baselines=None if baselines is None else _baselines(results, baselines),
    )
    experience = task
    if penalties is not None:
        experience = replace(task, rewards=task.rewards + numbers["penalty"][mask])
    estimate = estimator(experience)
    targets, explained = None, None
    if experience.values is not None and estimate.value_targets is not None:
        targets = _spread(estimate.value_targets, mask)
        explained = explained_variance(experience.values, estimate.value_targets)
    return Batch(
        rows, ranks[sequence_ids], sequence_ids, counts, _spread(estimate.values, mask),
        (task.returns > 0)[sequence_ids], estimate.groups, targets, explained,
    )  # fmt: skip


def _numbers(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], with_values: bool, world: World
) -> dict[str, Tensor]:
    """What all ranks must know of all records: num_steps and length [N], rewards [N, K], value and penalty [N, V]. Of
    each episode: the value of its final observation (of its next action, if there is one for each), float64 [E]; 0
    where the runtime was not asked for it. Pixels stay where they are."""
    names = ["num_steps", "rewards", *(["value"] if with_values else [])]
    names += [name for name in ("length", "penalty") if name in arrays]
    own: dict[int, dict[str, np.ndarray]] = {}
    for index, result in enumerate(results):
        if result.rank == world.rank:
            own[index] = {name: arrays[name][list(result.rows)] for name in names}
            final = arrays["value"][result.final_row, 0] if with_values and result.final_row >= 0 else 0.0
            own[index]["final_value"] = np.array([final], np.float64)
    episodes = {index: numbers for part in world.gather(own) for index, numbers in part.items()}
    ordered = [episodes[index] for index in range(len(results))]
    return {name: torch.from_numpy(np.concatenate([e[name] for e in ordered])) for name in (*names, "final_value")}


def counts_of(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> Counts:
    """How much of each decision in ``rows`` int64 [n] has happened."""
    steps = torch.from_numpy(arrays["num_steps"][rows]).long()
    return Counts(steps, torch.from_numpy(arrays["length"][rows]).long() if "length" in arrays else None)


def _baselines(results: Sequence[EpisodeResult], baselines: Mapping[Start, float]) -> Tensor:
    """Of each episode, float64 [E]."""
    return torch.tensor([baselines[result.episode.start] for result in results], dtype=torch.float64)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """[n] → [N, V] where ``mask`` is True, 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter_(mask, values)


def within_bounds(results: Sequence[EpisodeResult], lower: float, upper: float) -> list[EpisodeResult]:
    """The episodes of groups whose mean return lies between the bounds (:mod:`embodied.algorithms.filters`)."""
    returns = torch.tensor([result.episode_return for result in results], dtype=torch.float64)
    keep = filters.within_bounds(returns, torch.tensor([r.episode.group_id for r in results]), lower, upper)
    return [result for result, kept in zip(results, keep.tolist(), strict=True) if kept]


def optimizer_batches(count: int, size: int, seed: int, iteration: int, epoch: int) -> Iterator[Tensor]:
    """``count`` records in a random order, ``size`` at a time: int64 indices. The order is a function of
    ``seed`` and of the place in the run."""
    order = torch.from_numpy(generator(seed, Stream.MINIBATCHES, iteration, epoch).permutation(count))
    yield from order.split(size)


def micro_batches(index: Tensor, size: int, costs: Tensor | None = None) -> list[Tensor]:
    """``index`` int64 [n] in ceil(n / size) parts whose sizes differ by at most one, none above ``size``.

    A ragged last part would cost a pass for a few records. With ``costs`` float [n] (work of each record) those of
    similar cost share a part, the dearest first, so that short ones need not be filled up to long ones.
    """
    if costs is not None:
        index = index[torch.argsort(costs, descending=True, stable=True)]
    return list(index.tensor_split(max(1, -(-len(index) // size))))


def gather(
    arrays: Mapping[str, np.ndarray], names: Sequence[str], rows: np.ndarray, device: torch.device
) -> dict[str, Tensor]:
    """Fields ``names`` of ``rows`` as tensors [B, …] on ``device``; pixels stay uint8."""
    return {name: torch.from_numpy(arrays[name][rows]).to(device) for name in names}
