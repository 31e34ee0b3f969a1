"""How the numbers of an update add up over micro-batches, optimizer steps and ranks, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from embodied.learn.step.engine import OptimizerStep, Outcome
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.terms.term import Share

MADE = Outcome.MADE


def share(**found: dict[str, Any]) -> Share:
    """What a term has measured; means are (sum, count)."""
    tensors: dict[str, Any] = {
        kind: {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
        for kind, values in found.items()
    }
    return Share(torch.zeros(()), **tensors)


class Ranks:
    """A group of two whose other rank has measured what is given."""

    def __init__(self, other: UpdateMetrics) -> None:
        self.size, self._other = 2, other

    def gather(self, own: Any) -> list[Any]:
        one = self._other
        sums = np.array([one.samples, one.records, one.flops])
        return [own, (one.stats, sums, one.means, one.largest, one.per_batch)]


def test_numbers_of_steps_are_means_over_those_that_were_made():
    found = UpdateMetrics()
    for norm in (1.0, 3.0):
        found.add_to_steps("train/value_grad_norm", norm)
        found.add_step(OptimizerStep(MADE, 2 * norm, norm))
    found.add_step(OptimizerStep(Outcome.NOT_FINITE, float("nan"), 0.0))
    found.add_step(OptimizerStep(Outcome.OVERFLOW, 1.0, float("inf")))
    found.add_step(OptimizerStep(Outcome.ABANDONED, 1.0, 0.0))
    said = found.metrics()
    assert said["train/value_grad_norm"] == 2.0
    assert (said["train/loss"], said["train/grad_norm"]) == (4.0, 2.0)
    assert (said["train/optimizer_steps"], said["train/bad_updates"], said["train/overflows"]) == (2, 1, 1)
    assert found.batches == 4, "one that the ratio ended is none"


def test_numbers_of_batches_are_means_over_all_that_had_something_to_learn_from():
    found = UpdateMetrics()
    for outcome in (MADE, Outcome.NOT_FINITE):
        found.add([share(per_batch={"a": 1.0}), share(per_batch={"a": 2.0})])
        found.add_step(OptimizerStep(outcome, 0.0, 0.0))
    assert found.metrics()["a"] == 3.0


def test_means_are_of_elements_and_the_largest_is_the_largest():
    found = UpdateMetrics()
    found.add([share(means={"m": [6.0, 3.0]}, largest={"l": 0.5})])
    found.add([share(means={"m": [10.0, 1.0]}, largest={"l": 0.25})])
    assert (found.mean("m"), found.largest["l"]) == (4.0, 0.5)
    assert found.mean("other") is None
    found.average("m", torch.tensor([[4.0, 99.0]]), torch.tensor([[True, False]]))
    assert found.mean("m") == 4.0
    found.average("none", torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool))
    assert "none" not in found.metrics()


def test_ranks_add_up_what_each_has_and_keep_what_all_have():
    """Also a name that one of them alone has seen; steps and losses are the same on all ranks."""
    one, other = UpdateMetrics(samples=3, records=2, flops=5.0), UpdateMetrics(samples=4, records=4, flops=7.0)
    one.add([share(means={"m": [2.0, 1.0]}, largest={"l": 1.0}, per_batch={"b": 1.0})])
    other.add(
        [share(means={"m": [2.0, 3.0], "only": [8.0, 2.0]}, largest={"l": 3.0, "large": 2.0}, per_batch={"b": 2.0})]
    )
    one.add_step(OptimizerStep(MADE, 2.0, 1.0))
    group: Any = Ranks(other)
    said = one.over(group)
    assert (said.samples, said.records, said.flops) == (7, 6, 12.0)
    assert (said.mean("m"), said.mean("only")) == (1.0, 4.0)
    assert said.largest == {"l": 3.0, "large": 2.0}
    assert said.metrics()["b"] == 3.0
    assert (said.metrics()["train/loss"], said.steps) == (2.0, 1)


@pytest.mark.parametrize("updates", [[0, 2, 4], [7]])
def test_staleness_is_told_by_its_mean_and_its_largest(updates):
    found = UpdateMetrics()
    found.add_staleness(torch.tensor([1]))
    found.add_staleness(torch.tensor(updates))
    assert found.largest["train/staleness_max"] == max(updates)
    assert found.mean("train/staleness_mean") == pytest.approx((1 + sum(updates)) / (1 + len(updates)))
