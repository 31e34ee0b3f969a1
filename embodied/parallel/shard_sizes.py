"""Counts what a process holds of weights that several share out, and what it gathers of them. Imports no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from embodied.schema import FsdpConfig


class Weight(Protocol):
    """Interface of a parameter of torch, as far as its size is read here."""

    requires_grad: bool


@dataclass(frozen=True)
class ShardSizes:
    """Total sizes of the weights in each FSDP unit, whose weights are gathered together, and of those in none."""

    root: int  # outside of all units: they are gathered for the whole pass
    units: tuple[int, ...]

    @property
    def whole(self) -> int:
        """Size of all weights together."""
        return self.root + sum(self.units)

    @property
    def largest(self) -> int:
        """Size of the largest group of weights that is gathered at one time."""
        return max(self.root, *self.units) if self.units else self.root

    def gathered(self, reshard: bool = True) -> int:
        """Returns the most weights that a pass holds gathered at a time.

        Args:
            reshard: a unit is dropped when the pass leaves it.
        """
        return self.root + max(self.units, default=0) if reshard else self.whole


def shard_sizes(weights: Iterable[tuple[Hashable, int]], least: int = 0) -> ShardSizes:
    """Adds up the sizes of weights that are sharded by FSDP, unit by unit.

    Args:
        weights: the unit of each, None = no unit, and its size.
        least: a smaller unit belongs to the root.
    """
    units: Counter[Hashable] = Counter()
    for unit, size in weights:
        units[unit] += size
    root = units.pop(None, 0)
    large = tuple(size for size in units.values() if size >= least)
    return ShardSizes(root + sum(units.values()) - sum(large), large)


def is_shared(weight: Weight, fsdp: FsdpConfig) -> bool:
    """Returns whether FSDP shards a weight; others are held whole by each process."""
    return weight.requires_grad or fsdp.shard_frozen


def parts_of(fsdp: FsdpConfig, processes: int) -> int:
    """Returns the number of shards into which FSDP cuts a weight."""
    return fsdp.fsdp_size if fsdp.fsdp_size > 0 else processes


def part_of(shape: Sequence[int], parts: int) -> int:
    """Returns the elements in the largest shard of a weight: rows of the first axis, rounded up."""
    rows, *others = shape or [1]
    return -(-rows // parts) * math.prod(others)
