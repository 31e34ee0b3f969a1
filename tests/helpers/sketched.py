"""Sketches of groups' gradients against explicit ones: a backward pass a group, multiplied with the projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from embodied.learn.step.meters.noise.sketch import GradientSketch
from embodied.types import Sampling

CPU = torch.device("cpu")


def check_sketches(policy: Any, records: Mapping[str, Tensor], layers: set[str], scale: float = 1.0) -> GradientSketch:
    """Checks the sketches of three groups, whose records are mixed in passes of unequal size.

    Args:
        layers: names of the layers that can be sketched.
        scale: factor on the loss.
    """
    count = len(next(iter(records.values())))
    groups, order = torch.arange(count) % 3, torch.randperm(count, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(-1, 2, count)

    def loss(rows: Tensor, sketch: GradientSketch | None = None) -> Tensor:
        chosen = {name: values[rows] for name, values in records.items()}
        if sketch is not None:
            sketch.check(lambda two: policy.evaluate(two, Sampling()), chosen)
        result = policy.evaluate(chosen, Sampling())
        return (result.logprobs.flatten(1).sum(1) * weights[rows]).sum()

    sketch, seen, exact = GradientSketch(policy, 3), set[str](), []
    weights_of = {name: layer.weight for name, layer in sketch.layers.items() if name in layers}
    for group in range(3):
        gradients = torch.autograd.grad(loss((groups == group).nonzero().flatten()), [*weights_of.values()])
        exact.append(dict(zip(weights_of, gradients, strict=True)))
    for iteration in range(12):
        with sketch.measuring(3, iteration, CPU) as sketches:
            if sketches.keys() - sketch.unfit <= seen:
                continue  # these were looked at
            for part in (order[: count // 2 + 1], order[count // 2 + 1 : -1], order[-1:]):
                with sketch.records(groups[part], 3, CPU, scale):
                    (scale * loss(part, sketch)).backward()
        drawn = {layer.name: layer for layer in sketch._drawn(3, iteration, CPU)}
        for name in sketches.keys() - sketch.unfit - seen:
            for group, gradients in enumerate(exact):
                expected = (drawn[name].left.T @ gradients[name].float() @ drawn[name].right).flatten()
                assert expected.abs().max() > 0, name
                tolerance = 1e-4 * float(expected.abs().max())
                torch.testing.assert_close(sketches[name][group], expected, rtol=1e-3, atol=tolerance)
        seen |= sketches.keys() - sketch.unfit
    assert not sketch.unfit & layers
    assert seen <= layers
    assert len(seen) >= min(len(layers), 8), "others in each update"
    assert not any(module._forward_hooks for module in policy.modules()), "none stays"
    return sketch
