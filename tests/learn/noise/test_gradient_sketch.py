"""Sketches of groups' gradients: what they are equal to, and what is not sketched."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from rig import CPU
from sketched import check_sketches
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from embodied.learn.step.meters.noise.sketch import CHECKED, LAYERS, GradientSketch
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


def test_a_pass_checks_layers_of_later_updates_too():
    policy, passes = Stack(depth=CHECKED + 3), list[int]()
    sketch, x = GradientSketch(policy, 0), {"x": torch.randn(4, 3, 6)}

    def evaluate(records: Any) -> Evaluation:
        passes.append(len(records["x"]))
        return policy.evaluate(records, None)

    for iteration in range(80):
        with sketch.measuring(2, iteration, CPU), sketch.records(torch.arange(4) % 2, 2, CPU, 1.0):
            sketch.check(evaluate, x)
    assert passes == [2, 2]
    assert sketch._checked == set(sketch.layers)
    assert not sketch.unfit


def test_frozen_layers_and_the_value_head_are_left_out():
    policy = FakePolicy(value_head=True)
    policy.body[0].weight.requires_grad_(False)
    assert list(GradientSketch(policy, 0).layers) == ["head"]


class Recomputed(nn.Module):
    """Four blocks of four layers, computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))) for _ in range(4))
        self.seen: dict[StorageWeakRef, int] = {}  # bytes of layers' inputs and outputs
        self.peak = 0  # most bytes of them that were there at a time
        for block in self.blocks:
            for layer in block:
                layer.register_forward_hook(self._look)

    def _look(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        storages = [value.untyped_storage() for value in (*inputs, output)]
        self.seen |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        self.seen = {ref: size for ref, size in self.seen.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self.seen.values()))

    def evaluate(self, records: Any) -> Evaluation:
        x = nn.functional.dropout(records["x"], 0.5).requires_grad_()
        for block in self.blocks:
            x = checkpoint(self._block, block, x, use_reentrant=False)
        return Evaluation(x.sum(dim=-1))

    def _block(self, block: Any, x: Tensor) -> Tensor:
        for layer in block:
            x = layer(x).tanh()
        return x


def test_the_check_takes_no_memory_and_draws_nothing():
    policy, x, groups = Recomputed(), {"x": torch.randn(64, 5, 6)}, torch.arange(64) % 2
    sketch, peaks, gradients = GradientSketch(policy, 0), [], []
    for number in range(3):  # without sketches, with a check, with layers that were checked
        policy.zero_grad()
        policy.peak = 0
        torch.manual_seed(1)
        with sketch.measuring(2, 0, CPU):
            assert len(sketch._checked) == len(sketch.layers) * (number == 2)
            with sketch.records(groups, 2, CPU, 1.0) if number else nullcontext():
                sketch.check(policy.evaluate, x)
                policy.evaluate(x).logprobs.sum().backward()
        peaks.append(policy.peak)
        gradients.append([weight.grad for weight in policy.parameters()])
    assert not sketch.unfit
    assert max(peaks) < 1.1 * peaks[0]
    for found in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, gradients[0], strict=True))


def test_half_precision_does_not_overflow_where_the_gradient_does_not():
    layer = nn.Linear(512, 512, bias=False).half()
    policy = nn.ModuleDict({"layer": layer})
    sketch, x = GradientSketch(policy, 0), torch.ones(2, 512).half()  # type: ignore[arg-type]
    with sketch.measuring(2, 0, CPU) as sketches, sketch.records(torch.arange(2), 2, CPU, 65536.0):
        (layer(x) * 60000).sum().backward()
    drawn = sketch._drawn(2, 0, CPU)[0]
    expected = torch.outer(drawn.left.sum(0) * (60000 / 65536), drawn.right.sum(0)).flatten()
    assert (drawn.left.sum(0) * 60000).abs().max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(sketches["layer"], expected.expand(2, -1), rtol=1e-3, atol=1e-2)
