"""Computes the rollout's log-probs, and its values, anew with the network that is trained.

What decodes may compute with another arithmetic, such as an inference engine in 8 bits. The ratios of the loss would
then differ from 1 before anything has been learnt. With ``rollout.recompute_logprobs`` the old log-probs of the loss
are those of the trained network, with the weights that acted. What was recorded stays beside them
(:data:`embodied.learn.batch.RECORDED`): the difference is logged, and a loss with importance weights
(``loss_type: tis``) corrects for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.layout import Counts
from embodied.algorithms.metrics import logprob_gap, sum_and_count
from embodied.learn.batch import RECORDED, counts_of
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.passes import ForwardPasses, RankRecords, until_stopped
from embodied.learn.terms.term import Setup, Share
from embodied.learn.watch import Watch
from embodied.parallel.modes import without_dropout
from embodied.types import OUTSIDE, Evaluation, Sampling


class Recomputer:
    """Recomputes recorded log-probs, and values if asked, with the trained network.

    Args:
        with_values: also the values.
    """

    def __init__(self, setup: Setup, with_values: bool) -> None:
        self._layout, self._level, self._with_values = setup.layout, setup.algorithm.logprob_type, with_values

    def __call__(
        self, records: RankRecords, ranks: Tensor, chosen: Tensor, rows: np.ndarray, evaluate: ForwardPasses, size: int,
        metrics: UpdateMetrics, watch: Watch,
    ) -> RankRecords:  # fmt: skip
        """Returns the records with log-probs (and values) recomputed. All ranks call it.

        Args:
            ranks: the rank of each of n records, int64 [n].
            chosen: those that are read from here on, bool [n]. The others keep what they recorded.
            rows: of the n records, in the slab of the rank that has them, int64 [n].
            size: records of a pass.
            metrics: the gap between both goes there.

        Raises:
            Stopped: on all ranks; ``watch`` has ended it on one.
        """
        recorded = records.arrays["logprobs"]
        found = {"logprobs": recorded.copy()}
        if self._with_values:
            found["value"] = records.arrays["value"].copy()
        parts = records.parts(ranks, chosen, rows, size, forward_only=True)
        dropout = without_dropout(evaluate.policy)
        with torch.no_grad(), dropout, watch("log-probs before the update", sum(map(len, parts))) as passed:
            for part, _ in until_stopped(parts, passed, records.parallel):
                here = rows[part.numpy()]
                result = evaluate.policy.evaluate(records.gather(here), evaluate.sampling)
                if not len(part):
                    continue
                counts, before = counts_of(records.arrays, here).to(records.device), torch.from_numpy(recorded[here])
                result = _inside(result, before.to(records.device), evaluate.sampling)
                metrics.add([self._gap(result, before.to(records.device), counts)])
                found["logprobs"][here] = result.logprobs.float().cpu().numpy().reshape(found["logprobs"][here].shape)
                if self._with_values:
                    assert result.value is not None
                    found["value"][here] = result.value.float().cpu().numpy()
        return replace(records, arrays={**records.arrays, **found, RECORDED: recorded})

    def _gap(self, result: Evaluation, recorded: Tensor, counts: Counts) -> Share:
        """Measures the difference between recomputed and recorded log-probs, [m, M] each."""
        new, old = (self._layout.reduce(values, counts, self._level) for values in (result.logprobs, recorded))
        mask = self._layout.mask(counts, self._level)
        means = {"train/logprob_gap_mean": sum_and_count((new - old).abs(), mask)}
        return Share(None, means, {"train/logprob_gap": logprob_gap(new, old, mask)})


def _inside(result: Evaluation, recorded: Tensor, sampling: Sampling) -> Evaluation:
    """Keeps the recorded log-prob of a drawn token that ``top_k`` or ``top_p`` now excludes. Rounding decides which of
    two equally likely tokens they keep; the probability of the drawn one was not zero. Where neither truncates, a
    log-prob may be as small: that of a density."""
    if not sampling.top_k and sampling.top_p >= 1:
        return result
    new = result.logprobs.float()
    return replace(result, logprobs=torch.where(new < OUTSIDE, recorded.reshape(new.shape), new))
