"""Drift: mean log-ratio of whole sequences since they were acted, for losses with one ratio a sequence."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from embodied.algorithms.aggregation import sequence_means
from embodied.learn.batch import Batch
from embodied.learn.step.objective import Objective
from embodied.learn.step.passes import ForwardPasses, RankRecords, until_stopped
from embodied.learn.terms.term import OptimizerBatch
from embodied.learn.watch import Passed
from embodied.parallel.modes import without_dropout


def with_drift(
    optimizer_batch: OptimizerBatch, keep: Tensor, local: RankRecords, batch: Batch, chosen: Tensor,
    objective: Objective, evaluate: ForwardPasses, size: int, passed: Passed,
) -> OptimizerBatch:  # fmt: skip
    """The optimizer batch with its drift, ``mean(lp − lp_old)``, from a pass without gradients and dropout. All ranks
    call it.

    Args:
        optimizer_batch: the records ``chosen`` int64 [n] of ``batch``.
        keep: which of them are trained on, bool [n]. Sequences without such a record keep a drift of 0.
        local: this rank's of the records.
        size: records of a pass.
        passed: asked after each pass whether to go on.

    Raises:
        Stopped: on all ranks; ``passed`` has ended it on one.
    """
    ids, sums = optimizer_batch.sequence_ids, torch.zeros(len(chosen))
    rows = batch.rows[chosen.numpy()]
    parts = local.parts(batch.ranks[chosen], torch.isin(ids, ids[keep]), rows, size, forward_only=True)
    with torch.no_grad(), without_dropout(local.policy):
        for part, _ in until_stopped(parts, lambda records: passed(0), local.parallel):
            records = local.gather(rows[part.numpy()])
            result = evaluate.policy.evaluate(records, evaluate.sampling)
            if len(part):
                counts = optimizer_batch.counts.at(part).to(local.device)
                sums[part] = objective.log_ratio_sums(result, records, counts).float().cpu()
    local.parallel.group.sum(sums)
    return replace(optimizer_batch, drift=sequence_means(sums, optimizer_batch.mask, ids))
