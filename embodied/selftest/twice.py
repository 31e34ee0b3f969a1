"""What must come out the same twice, and does so to the bit where sums have one order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from embodied.selftest import learning
from embodied.selftest.measured import Measured, at_most, figure, none_of

GRADIENT = 1e-4  # tolerance, relative to the norm: float32 sums in another order
MOVED = 0.05  # of the norm of what was learned: Adam's first step takes the sign also of a gradient that is rounding


def gradients(
    label: str, first: Mapping[str, Tensor], second: Mapping[str, Tensor], on_gpu: bool
) -> Iterator[Measured]:
    """Measures whether the gradients of two equal backward passes are the same: on a CPU bit by bit, on a GPU, whose
    attention adds up gradients in any order, within rounding."""
    yield from _same(label, first, second, on_gpu)
    if on_gpu:
        yield at_most(f"{label}, apart, share of their norm", learning.relative(first, second), GRADIENT)


def weights(
    label: str, first: Mapping[str, Tensor], second: Mapping[str, Tensor], began: Mapping[str, Tensor], on_gpu: bool
) -> Iterator[Measured]:
    """Measures whether two trainings that began alike end with the same weights, as :func:`gradients` does."""
    yield from _same(label, first, second, on_gpu)
    if on_gpu:
        gap = learning.relative(*({name: v - began[name] for name, v in side.items()} for side in (first, second)))
        yield at_most(f"{label}, apart, share of what was learned", gap, MOVED)


def _same(name: str, first: Mapping[str, Tensor], second: Mapping[str, Tensor], on_gpu: bool) -> Iterator[Measured]:
    differ = learning.unequal(first, second)
    if on_gpu:
        yield figure(f"{name}, tensors that differ in a bit", differ, f"of {len(second)}")
    else:
        yield none_of(f"{name}, tensors that differ", differ, len(second))
