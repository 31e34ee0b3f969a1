"""What the trainer sees of an iteration: which slab rows are records, whose episode they are, and their advantage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms import granularity
from embodied.algorithms.advantages import Advantages, Estimator
from embodied.types import EpisodeResult


@dataclass(frozen=True)
class Batch:
    """N records of E episodes, ordered by episode of the plan and then by time, whatever order they were made in."""

    rows: np.ndarray  # int64 [N], rows of the slab
    sequence_ids: Tensor  # int64 [N], index of the record's episode in the plan
    advantages: Tensor  # float32 [N, V], that of its episode; V = 1 or K rewards a record (algorithm.reward_type)
    num_steps: Tensor  # int64 [N], executed control steps of the record
    estimate: Advantages  # the advantages of the episodes and what was found about their groups

    def __len__(self) -> int:
        return len(self.rows)


def make_batch(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], estimator: Estimator, reward_type: str
) -> Batch:
    """Returns from the records' rewards, advantages from the returns, spread over the records.

    Args:
        arrays: the slab's arrays.
        results: all episodes of the iteration, in the plan's order, with their rows.
        reward_type: ``algorithm.reward_type``: one advantage a record, or one an action.
    """
    rows = np.concatenate([np.asarray(result.rows, np.int64) for result in results])
    lengths = torch.tensor([len(result.rows) for result in results])
    sequence_ids = torch.repeat_interleave(torch.arange(len(results)), lengths)
    num_steps = torch.from_numpy(arrays["num_steps"][rows]).long()
    rewards = granularity.reduce_rewards(torch.from_numpy(arrays["rewards"][rows]), num_steps, reward_type)  # [N, V]
    returns = torch.zeros(len(results), dtype=torch.float64).index_add_(0, sequence_ids, rewards.double().sum(dim=1))
    estimate = estimator(returns, torch.tensor([result.episode.group_id for result in results]))
    return Batch(rows, sequence_ids, estimate.values[sequence_ids][:, None].expand_as(rewards), num_steps, estimate)


def optimizer_batches(count: int, size: int, seed: Sequence[int]) -> Iterator[Tensor]:
    """``count`` records in a random order, ``size`` at a time: int64 indices. The order is a function of ``seed``."""
    order = torch.from_numpy(np.random.default_rng(list(seed)).permutation(count))
    yield from order.split(size)


def gather(
    arrays: Mapping[str, np.ndarray], names: Sequence[str], rows: np.ndarray, device: torch.device
) -> dict[str, Tensor]:
    """Fields ``names`` of ``rows`` as tensors [B, …] on ``device``; pixels stay uint8."""
    return {name: torch.from_numpy(arrays[name][rows]).to(device) for name in names}
