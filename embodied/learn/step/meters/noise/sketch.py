"""Sketches the gradients of single groups while the passes of an update are made, which stay as they are.

The gradient of a linear layer's weight is ``Σ g aᵀ`` over the rows that the layer sees: ``a`` is its input, ``g`` the
gradient of its output. The rows of one record are known, whichever records share a pass. So a group g has the sketch

    S_g = Σ over its rows of (P g)(Q a)ᵀ        P [32, out], Q [32, in]: random signs / √32, drawn anew for each update

whose inner products have the expectation of those of the whole gradients. A side of 32 numbers or fewer is kept as it
is. Of many layers :data:`LAYERS` are sketched in
an update, evenly over the network and others in the next. What is no linear layer is left out (embeddings, norms,
biases, the value head).

Shapes: G groups, m records of a pass, R rows of it that a layer sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.protocols import LaysOutRecords, Policy
from embodied.random import Stream, generator
from embodied.types import Evaluation

SIZE = 32
"""Most rows of P and of Q."""

LAYERS = 2
"""Layers that are sketched in an update."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer that is sketched in an update."""

    name: str
    left: Tensor  # float32 [out, p], P transposed
    right: Tensor  # float32 [in, q], Q transposed
    sums: Tensor  # float32 [G, pq], sketches of the groups


@dataclass(frozen=True, eq=False)
class _Pass:
    """The records of a pass."""

    share: Tensor  # float32 [G, m], 1 / loss scale where a record is one of a group's, else 0
    seen: list[tuple[str, Tensor]] | None  # outputs of all layers, whose rows are to be checked; None: they were


class GradientSketch:
    """Sketches the gradients of groups by hooks on linear layers. No hook stands outside :meth:`measuring`."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self._seed, self._lays_out = seed, policy if isinstance(policy, LaysOutRecords) else None
        self.layers = trained_layers(policy)
        self.unfit: set[str] = set()  # layers that no pass calls, or whose rows nobody can give to records
        self._pass: _Pass | None = None
        self._checked = False

    def leave_out(self, names: set[str]) -> None:
        """Leaves layers out of all updates that follow."""
        self.layers = {name: layer for name, layer in self.layers.items() if name not in names}

    @contextmanager
    def measuring(self, groups: int, iteration: int, device: torch.device) -> Iterator[dict[str, Tensor]]:
        """Context of the passes of an update; yields the sketches, which it fills: float32 [G, pq] of each layer."""
        layers = self._drawn(groups, iteration, device)
        hooks = [self.layers[layer.name].register_forward_hook(self._hook(layer)) for layer in layers]
        if not self._checked:
            hooks += [layer.register_forward_hook(self._look(name)) for name, layer in self.layers.items()]
        try:
            yield {layer.name: layer.sums for layer in layers}
        finally:
            for hook in hooks:
                hook.remove()

    def _drawn(self, groups: int, iteration: int, device: torch.device) -> list[_Layer]:
        """Chooses the layers of an update, and draws their projections."""
        random, names = generator(self._seed, Stream.SKETCH, iteration), list(self.layers)
        count, first = min(LAYERS, len(names)), random.random()
        found = []
        for name in (names[int((number + first) * len(names) / count)] for number in range(count)):
            layer = self.layers[name]
            left, right = (_projection(random, width).to(device) for width in (layer.out_features, layer.in_features))
            sums = torch.zeros(groups, left.shape[1] * right.shape[1], device=device)
            found.append(_Layer(name, left, right, sums))
        return found

    @contextmanager
    def records(self, groups: Tensor, count: int, device: torch.device, scale: float) -> Iterator[None]:
        """Context of one forward and backward pass.

        Args:
            groups: the group of each record, int64 [m], below ``count``.
            scale: factor on the loss.
        """
        share = torch.nn.functional.one_hot(groups, count).T.to(device, torch.float32) / scale
        self._pass = _Pass(share, None if self._checked or len(groups) == 1 else [])
        try:
            yield
        finally:
            self._pass = None

    def _look(self, name: str) -> Any:
        def forward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            now = self._pass
            if now is not None and now.seen is not None and torch.is_grad_enabled() and output.requires_grad:
                now.seen.append((name, output))

        return forward

    def _hook(self, layer: _Layer) -> Any:
        def forward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            now = self._pass
            if now is None or not (torch.is_grad_enabled() and output.requires_grad):
                return
            place = self._place(inputs[0], now.share.shape[1])
            if place is None:
                self.unfit.add(layer.name)
                return
            right = _table(inputs[0].detach() @ layer.right.to(inputs[0].dtype), *place)

            def backward(grad: Tensor) -> None:
                if self._pass is now:
                    left = _table(grad @ layer.left.to(grad.dtype), *place)
                    layer.sums.addmm_(now.share, torch.bmm(left.transpose(1, 2), right).flatten(1))

            output.register_hook(backward)

        return forward

    def _place(self, given: Tensor, records: int) -> tuple[int, int, Tensor | None] | None:
        """Returns how a layer's rows lie in a table of records: records, rows of each, and where each row of the layer
        lies (None: in order). None: nobody knows."""
        rows = given.numel() // given.shape[-1]
        if self._lays_out is not None:
            place, length = self._lays_out.record_rows()
            return (records, length, place) if len(place) == rows else None
        return (records, rows // records, None) if given.ndim > 1 and given.shape[0] % records == 0 else None

    def check(self, result: Evaluation) -> None:
        """Checks in the first pass of two records or more which rows of each layer are those of the first record: its
        log-probs must have no gradient in the others. Call it before the backward pass."""
        now = self._pass
        if now is None or not now.seen:
            return
        self._pass, self._checked = None, True  # these gradients are no part of a sketch
        self.unfit |= self.layers.keys() - {name for name, _ in now.seen}
        outputs = [output for _, output in now.seen]
        grads = torch.autograd.grad(result.logprobs[0].sum(), outputs, retain_graph=True, allow_unused=True)
        for (name, output), grad in zip(now.seen, grads, strict=True):
            place = self._place(output, now.share.shape[1])
            if place is None or (grad is not None and bool(_table(grad, *place)[1:].any())):
                self.unfit.add(name)
        self._pass = now


def _projection(random: np.random.Generator, width: int) -> Tensor:
    """Draws a transposed projection of vectors of ``width`` numbers, float32 [width, ≤ 32]."""
    if width <= SIZE:
        return torch.eye(width)
    signs = random.integers(0, 2, (width, SIZE), dtype=np.int8)
    return (2 * torch.from_numpy(signs) - 1) / SIZE**0.5


def _table(values: Tensor, records: int, length: int, place: Tensor | None) -> Tensor:
    """Puts a layer's rows into a table of records: [R…, n] → float32 [m, rows of a record, n]."""
    values = values.reshape(-1, values.shape[-1]).float()
    if place is not None:  # what fills up a sequence lies behind the table
        table = values.new_zeros(records * length + 1, values.shape[1])
        values = table.index_copy_(0, place, values)[:-1]
    return values.view(records, length, -1)


def trained_layers(policy: Policy) -> dict[str, nn.Linear]:
    """Lists the linear layers whose weights are trained, by name, without those of the value head."""
    if not isinstance(policy, nn.Module):
        return {}
    return {
        name: module
        for name, module in policy.named_modules()
        if isinstance(module, nn.Linear) and module.weight.requires_grad and not name.startswith("value_head")
    }
