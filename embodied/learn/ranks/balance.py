"""Moves records between ranks, so that each has about as much to compute in an optimizer step.

    costs: tokens of a record, else 1 ─▶ placed(): which rank computes it ─▶ exchange ─▶ passes

Which records form a step, their weights and the sum of their gradients stay what they are. Only where a record is
computed changes, so numbers differ by rounding alone (``actor.enable_dp_load_balance``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embodied import instructions
from embodied.learn.batch import RECORDED, Batch
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.passes import RankRecords
from embodied.parallel.group import Group
from embodied.protocols import CountsTokens


def placed(ranks: Tensor, costs: Tensor, size: int) -> Tensor:
    """Returns which of ``size`` ranks computes each of n records, int64 [n]: dearest first, each onto the rank that
    has the least (Graham's rule). A record stays where that leaves its rank at the mean or below.

    Args:
        ranks: that have the records, int64 [n].
        costs: of the records, int64 [n].

    >>> placed(torch.tensor([0, 0, 0, 0, 1]), torch.tensor([9, 5, 3, 1, 2]), 2).tolist()
    [0, 1, 1, 0, 1]
    """
    collected = _loads(ranks, costs, size).tolist()
    mean, loads, found, prices = sum(collected) / size, [0] * size, ranks.tolist(), costs.tolist()
    # Of equal records those of ranks with few come first: they stay, and what others have too much goes around them.
    for record in sorted(range(len(found)), key=lambda one: (-prices[one], collected[found[one]])):
        rank, price = found[record], prices[record]
        if loads[rank] + price > mean:
            rank = min((load, other != rank, collected[other], other) for other, load in enumerate(loads))[-1]
        found[record] = rank
        loads[rank] += price
    to = torch.tensor(found, dtype=torch.int64)
    return to if imbalance(to, costs, size) < imbalance(ranks, costs, size) else ranks


def imbalance(ranks: Tensor, costs: Tensor, size: int) -> float:
    """The largest cost of a rank relative to the mean over ``size`` ranks; 1 = all have the same.

    Args:
        ranks: of n records, int64 [n].
        costs: of the records, int64 [n].
    """
    loads = _loads(ranks, costs, size)
    return float(loads.max()) * size / max(float(loads.sum()), 1.0)


def _loads(ranks: Tensor, costs: Tensor, size: int) -> Tensor:
    """The sum of the costs of each rank, int64 [size]."""
    return torch.zeros(size, dtype=torch.int64).index_add_(0, ranks, costs)


@dataclass(frozen=True)
class Balance:
    """Assigns the records of an update to ranks. The same on all ranks.

    Args:
        costs: of the batch's records, int64 [N].
    """

    costs: Tensor
    group: Group

    @classmethod
    def of(cls, records: RankRecords, batch: Batch) -> tuple[Balance, Batch]:
        """The costs of all records; and the batch with the log-probs before the update of all ranks' records, which
        until then each rank has of its own. All ranks call it."""
        group, policy = records.parallel.group, records.policy
        costs = torch.ones(len(batch), dtype=torch.int64)
        if isinstance(policy, CountsTokens):
            mine = records.among(batch.ranks, torch.ones(len(batch), dtype=torch.bool))
            costs.zero_()
            if len(mine):
                costs[mine] = torch.from_numpy(policy.tokens(records.light(batch.rows[mine.numpy()]))).long()
            group.sum(costs)
        if batch.proximal is not None:
            batch = replace(batch, proximal=group.sum(batch.proximal.clone()))
        return cls(costs, group), batch

    def ranks(self, batch: Batch, chosen: Tensor, keep: Tensor) -> Tensor:
        """The rank that computes each of the records ``chosen`` int64 [n], of which ``keep`` bool [n] are computed:
        int64 [n]."""
        found = batch.ranks[chosen].clone()
        found[keep] = placed(found[keep], self.costs[chosen][keep], self.group.size)
        return found

    def moved(
        self, records: RankRecords, batch: Batch, chosen: Tensor, keep: Tensor, metrics: UpdateMetrics
    ) -> tuple[RankRecords, Batch]:
        """This rank's records of an optimizer step, in arrays of their own, and the batch that says where its records
        stand now. All ranks call it.

        Args:
            chosen: the records of the step, int64 [n].
            keep: which of them are computed, bool [n]. The others are not to be read.
        """
        before, after = batch.ranks[chosen], self.ranks(batch, chosen, keep)
        costs, size = self.costs[chosen] * keep, self.group.size
        for name, ranks in (("train/rank_imbalance_before", before), ("train/rank_imbalance", after)):
            metrics.average(name, torch.tensor([imbalance(ranks, costs, size)]), torch.tensor([True]))
        if torch.equal(before, after):
            return records, batch
        kept = keep.nonzero().flatten().numpy()
        sources, targets = before.numpy()[kept], after.numpy()[kept]
        order = np.lexsort((sources, targets))  # order of arrival: by target, then by source
        kept, sources, targets = kept[order], sources[order], targets[order]
        counts = np.zeros((size, size), np.int64)
        np.add.at(counts, (sources, targets), 1)
        sent = batch.rows[chosen.numpy()[kept[sources == self.group.rank]]]
        arrays = _exchanged(records, sent, counts, self.group)
        rows, ranks = batch.rows.copy(), batch.ranks.clone()
        first = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
        rows[chosen.numpy()[kept]] = 1 + np.arange(len(kept)) - first[targets]  # row 0 is the spare one
        ranks[chosen] = after
        return replace(records, arrays=arrays, spare=0), replace(batch, rows=rows, ranks=ranks)


def _exchanged(records: RankRecords, sent: np.ndarray, counts: np.ndarray, group: Group) -> dict[str, np.ndarray]:
    """Exchanges records of a step; returns the fields that passes read, [1 + r, …]: a spare record, and those received.

    Args:
        sent: rows of ``records`` in the order of the ranks that they go to, int64.
        counts: records that go from a rank to another, int64 [size, size].
    """
    told = [] if instructions.FIELD in records.env.obs else ["task_id"]
    recorded = [RECORDED] if RECORDED in records.arrays else []
    found = {}
    for name in (*records.env.obs, *records.policy.spec.decision, *told, *recorded):
        array = records.arrays[name]
        arrived = exchanged(array, sent, counts[group.rank].tolist(), counts[:, group.rank].tolist(), group)
        found[name] = np.concatenate([array[records.placeholder], arrived])
    return found


def exchanged(
    array: np.ndarray, sent: np.ndarray, to: Sequence[int], of: Sequence[int], group: Group
) -> np.ndarray:  # fmt: skip
    """Exchanges rows of an array between ranks: sends ``to[rank]`` rows to each rank and returns the rows received,
    ``of[rank]`` from each: [r, …].

    Args:
        sent: rows in the order of the ranks that they go to, int64.
        to: how many go to each rank.
        of: how many come from each.
    """
    each = array[:1].nbytes
    flat = torch.from_numpy(np.ascontiguousarray(array[sent]).reshape(-1).view(np.uint8))
    got = group.exchange(flat, [count * each for count in to], [count * each for count in of]).numpy()
    return got.view(array.dtype).reshape(-1, *array.shape[1:])
