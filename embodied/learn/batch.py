"""The training batch of an iteration, and how it is cut into optimizer batches and micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.advantages.advantages import Advantages
from embodied.algorithms.layout import Counts
from embodied.random import Stream, generator

RECORDED = "recorded_logprobs"
"""Field of records whose ``logprobs`` were recomputed: those that stood there before, float32 [M₀]."""


@dataclass(frozen=True)
class Batch:
    """N records of E episodes, in the order of the plan and then of time. :mod:`embodied.learn.score.score` makes it.

    V rewards a record (:mod:`embodied.algorithms.rewards`); what stands where nothing was executed is 0.
    """

    rows: np.ndarray  # int64 [N], rows of the slab of the rank that has the record
    ranks: Tensor  # int64 [N], that rank
    sequence_ids: Tensor  # int64 [N], index of the record's episode in the plan
    counts: Counts  # executed control steps of each record, and lengths if its elements have them
    advantages: Tensor  # float32 [N, V]
    positive: Tensor  # bool [N], the record's episode has a return above 0
    versions: Tensor  # int64 [N], version of the weights that acted
    group_ids: Tensor  # int64 [N], group of the record's episode
    groups: Advantages  # largest advantage of each episode, and which groups have none
    value_targets: Tensor | None  # float32 [N, V], what the value head should have said; None if none is trained
    explained_variance: float | None  # fit of values at action time; None without values, or if all targets are equal
    proximal: Tensor | None = None  # float32 [N, M₀], log-probs when the update began; None if no term reads them here
    shared: Tensor | None = None  # int64 [N], first elements that do not count (min_filter_prefix_tokens); None: all do

    def __len__(self) -> int:
        return len(self.rows)


def counts_of(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> Counts:
    """Reads executed control steps and lengths of the decisions in ``rows`` int64 [n]."""
    steps = torch.from_numpy(arrays["num_steps"][rows]).long()
    return Counts(steps, torch.from_numpy(arrays["length"][rows]).long() if "length" in arrays else None)


def optimizer_batches(
    count: int, size: int, seed: int, iteration: int, epoch: int, shuffle: bool = True
) -> Iterator[Tensor]:
    """Indices of ``count`` records in a random order, int64, ``size`` at a time. ``seed`` and the place in the run
    decide the order; without ``shuffle`` it is that of the plan."""
    order = torch.arange(count)
    if shuffle:
        order = torch.from_numpy(generator(seed, Stream.MINIBATCHES, iteration, epoch).permutation(count))
    yield from order.split(size)


def micro_batches(index: Tensor, size: int, costs: Tensor | None = None) -> list[Tensor]:
    """Cuts ``index`` int64 [n] into ceil(n / size) parts whose sizes differ by at most one, none above ``size``.

    A ragged last part would cost a pass for a few records. With ``costs`` float [n] (work of each record) those of
    similar cost share a part, the dearest first, so that short ones need not be filled up to long ones.
    """
    if costs is not None:
        index = index[torch.argsort(costs, descending=True, stable=True)]
    return list(index.tensor_split(max(1, -(-len(index) // size))))


def packed(index: Tensor, tokens: Tensor, budget: int, size: int) -> list[Tensor]:
    """Shares out ``index`` int64 [n] over parts of near-equal work, as few as will do: at most ``budget`` tokens and
    ``size`` records each. A record of more than ``budget`` tokens is a part of its own.

    The longest records are placed first, each into the part that has the fewest tokens (Graham's rule).

    Args:
        tokens: of each record, int64 [n].

    >>> [part.tolist() for part in packed(torch.arange(4), torch.tensor([5, 1, 4, 2]), 6, 4)]
    [[0, 1], [2, 3]]
    """
    lengths = tokens.tolist()
    order = torch.argsort(tokens, descending=True, stable=True).tolist()
    alone = [[record] for record in order if lengths[record] > budget]
    fitting = order[len(alone) :]
    count = max(-(-sum(lengths[record] for record in fitting) // budget), -(-len(fitting) // size))
    while (placed := _placed(fitting, lengths, count, budget, size)) is None:
        count += 1
    return [index[sorted(part)] for part in (*alone, *placed)]


def _placed(order: list[int], lengths: list[int], count: int, budget: int, size: int) -> list[list[int]] | None:
    """The numbers of records in each of ``count`` parts; None if they do not fit."""
    parts: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]  # tokens so far, part
    for record in order:
        filled, number = heapq.heappop(heap)
        if filled + lengths[record] > budget:
            return None  # every other part has as many tokens or more
        parts[number].append(record)
        if len(parts[number]) < size:
            heapq.heappush(heap, (filled + lengths[record], number))
    return parts


def gather(
    arrays: Mapping[str, np.ndarray], names: Sequence[str], rows: np.ndarray, device: torch.device
) -> dict[str, Tensor]:
    """Copies fields ``names`` of ``rows`` int64 [B] to ``device``: tensors [B, …]; pixels stay uint8."""
    return {name: torch.from_numpy(arrays[name][rows]).to(device) for name in names}
