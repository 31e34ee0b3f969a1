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

from collections.abc import Callable, Iterator, Mapping
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

CHECKED = 16
"""Most layers that a pass checks, whose outputs it keeps."""


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

    groups: Tensor  # int64 [m], group of each record
    share: Tensor  # float32 [G, m], 1 / loss scale where a record is one of a group's, else 0


class GradientSketch:
    """Sketches the gradients of groups by hooks on linear layers. No hook stands outside :meth:`measuring`."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self._seed, self._lays_out = seed, policy if isinstance(policy, LaysOutRecords) else None
        self.layers = trained_layers(policy)
        self.unfit: set[str] = set()  # layers that no pass calls, or whose rows nobody can give to records
        self._pass: _Pass | None = None
        self._unchecked: set[str] = set()  # drawn layers whose rows are still to be checked
        self._checked: set[str] = set()

    def leave_out(self, names: set[str]) -> None:
        """Leaves layers out of all updates that follow."""
        self.layers = {name: layer for name, layer in self.layers.items() if name not in names}

    @contextmanager
    def measuring(self, groups: int, iteration: int, device: torch.device) -> Iterator[dict[str, Tensor]]:
        """Context of the passes of an update; yields the sketches, which it fills: float32 [G, pq] of each layer."""
        layers = self._drawn(groups, iteration, device)
        hooks = [self.layers[layer.name].register_forward_hook(self._hook(layer)) for layer in layers]
        self._unchecked = {layer.name for layer in layers} - self._checked
        try:
            yield {layer.name: layer.sums for layer in layers}
        finally:
            self._unchecked = set()
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
        self._pass = _Pass(groups, share)
        try:
            yield
        finally:
            self._pass = None

    def _hook(self, layer: _Layer) -> Any:
        def forward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            now = self._pass
            if now is None or not (torch.is_grad_enabled() and output.requires_grad):
                return
            place = self._place(inputs[0], now.share.shape[1])
            if place is None:
                self.unfit.add(layer.name)
                return
            right = _table(_projected(inputs[0].detach(), layer.right), *place)

            def backward(grad: Tensor) -> None:
                if self._pass is now:
                    left = _table(_projected(grad, layer.left), *place)
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

    def check(self, evaluate: Callable[[Mapping[str, Tensor]], Evaluation], records: Mapping[str, Tensor]) -> None:
        """Checks of each drawn layer once which rows are those of a record: the log-probs of one must have no gradient
        in the rows of another. Two records of different groups have a pass of their own for it, which leaves the random
        generators as they were and checks some layers of later updates too. Call it before the forward pass.

        Args:
            records: of the pass, tensors [m, …].
        """
        now, names = self._pass, self._with_more(self._unchecked)
        others = [] if now is None or not names else (now.groups != now.groups[0]).nonzero().flatten().tolist()
        if not others:  # whoever has a row, its group is right
            return
        self._pass, self._unchecked = None, set()  # this pass is no part of a sketch
        two = {name: torch.stack([values[0], values[others[0]]]) for name, values in records.items()}
        device = next(iter(two.values())).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            with self._outputs(names) as seen:
                first = evaluate(two).logprobs[0].sum()
            if first.requires_grad:  # else the value head alone is trained
                self._checked |= names
                self.unfit |= names - {name for name, _ in seen}
                outputs = [output for _, output in seen]
                grads = torch.autograd.grad(first, outputs, allow_unused=True) if seen else ()
                for (name, output), grad in zip(seen, grads, strict=True):
                    place = self._place(output, 2)
                    if place is None or (grad is not None and bool(_table(grad, *place)[1:].any())):
                        self.unfit.add(name)
        self._pass = now

    def _with_more(self, names: set[str]) -> set[str]:
        """Returns layers with others that were not checked, up to :data:`CHECKED`; none if there are none."""
        more = [name for name in self.layers if name not in self._checked | names] if names else []
        return names | {*more[: CHECKED - len(names)]}

    @contextmanager
    def _outputs(self, names: set[str]) -> Iterator[list[tuple[str, Tensor]]]:
        """Context of a forward pass; yields the outputs of the layers ``names``, which it fills. It ends before the
        backward pass: what is computed again there would be kept."""
        seen: list[tuple[str, Tensor]] = []

        def look(name: str) -> Any:
            return lambda module, inputs, output: seen.append((name, output)) if output.requires_grad else None

        hooks = [self.layers[name].register_forward_hook(look(name)) for name in names]
        try:
            yield seen
        finally:
            for hook in hooks:
                hook.remove()


def _projection(random: np.random.Generator, width: int) -> Tensor:
    """Draws a transposed projection of vectors of ``width`` numbers, float32 [width, ≤ 32]."""
    if width <= SIZE:
        return torch.eye(width)
    signs = random.integers(0, 2, (width, SIZE), dtype=np.int8)
    return (2 * torch.from_numpy(signs) - 1) / SIZE**0.5


def _projected(values: Tensor, projection: Tensor) -> Tensor:
    """Returns ``values`` [R, n] times a projection [n, ≤ 32]; in float32 what float16 would overflow."""
    values = values.float() if values.dtype == torch.float16 else values
    with torch.autocast(values.device.type, enabled=False):
        return values @ projection.to(values.dtype)


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
