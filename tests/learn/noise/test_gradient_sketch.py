"""Sketches of groups' gradients: what they are equal to, and what is not sketched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rig import CPU
from sketched import check_sketches
from torch import Tensor, nn

from embodied.learn.step.meters.noise.sketch import LAYERS, GradientSketch
from embodied.testing import FakePolicy
from embodied.testing.flow import FlowPolicy
from embodied.types import Evaluation, Sampling

COUNT = 11  # records


def observed() -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return {"state": torch.randn(COUNT, 8, generator=drawn), "task": torch.arange(COUNT) % 5}


def recorded(policy: Any) -> dict[str, Tensor]:
    obs, spec = observed(), policy.spec.noise
    drawn = torch.Generator().manual_seed(1)
    shape = (COUNT, *spec.shape)
    noise = (torch.rand if spec.kind == "uniform" else torch.randn)(shape, generator=drawn)
    return {**obs, **policy.act(obs, noise, Sampling()).fields}


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_tokens(scale):
    policy = FakePolicy(value_head=True)
    check_sketches(policy, recorded(policy), {"body.0", "head"}, scale)


def test_a_flow_whose_layers_are_used_in_each_step():
    policy = FlowPolicy()
    check_sketches(policy, recorded(policy), {"body.0", "body.2"})


class Stack(nn.Module):
    """Linear layers of which some mix records.

    Args:
        time_first: the middle layer sees the rows of all records at the first time, then at the second.
    """

    def __init__(self, time_first: bool = False, depth: int = 3, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self._time_first, self._width = time_first, width

    def evaluate(self, records: Any, sampling: Any) -> Evaluation:
        x = records["x"]
        for number, layer in enumerate(self.layers):
            if self._time_first and number == 1:
                x = layer(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (-1, len(records["x"]))).transpose(0, 1).tanh()
            else:
                x = layer(x).tanh()
        return Evaluation(x.sum(dim=-1))


def test_layers_that_mix_records_are_found_and_left_out():
    x = {"x": torch.randn(COUNT, 4, 6, generator=torch.Generator().manual_seed(2))}
    check_sketches(Stack(), x, {"layers.0", "layers.1", "layers.2"})
    assert check_sketches(Stack(time_first=True), x, {"layers.0", "layers.2"}).unfit == {"layers.1"}


def test_of_many_layers_some_are_sketched_in_turn():
    sketch, found = GradientSketch(Stack(depth=13), 0), list[str]()
    for iteration in range(300):
        with sketch.measuring(2, iteration, CPU) as sketches:
            assert len(sketches) == LAYERS
            found += sketches
    counts = [found.count(f"layers.{number}") for number in range(13)]
    assert min(counts) > 0.5 * max(counts), "each about as often"


def test_frozen_layers_and_the_value_head_are_left_out():
    policy = FakePolicy(value_head=True)
    policy.body[0].weight.requires_grad_(False)
    assert list(GradientSketch(policy, 0).layers) == ["head"]
