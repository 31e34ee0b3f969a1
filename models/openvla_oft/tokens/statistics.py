"""Checks one block (actions or state) of a dataset_statistics.json. Wrong numbers would move the robot by wrong amounts
without an error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from embodied.errors import CheckpointError

PAIRS = (("q01", "q99"), ("min", "max"))
CONSTANT = "constant"
"""Entry of ours: for each dimension, whether low and high are equal because the data never move it."""
FIX = "use the statistics of the checkpoint's own training data (its source has them), or correct the entry"


def read_range(
    block: Mapping[str, Any], kind: str, names: tuple[str, str]
) -> tuple[Sequence[float], Sequence[float], Sequence[bool]]:
    """Reads low end, high end and mask of each dimension from a block of statistics.

    Args:
        kind: action or proprio, for errors.
        names: of the entries for low and high, which are there.

    Raises:
        CheckpointError: an entry is no list of finite numbers, the lengths differ, or a low end is above the high one.
    """
    for pair in PAIRS:
        if all(name in block for name in pair):
            _check_order(block, kind, pair)
    low, high = (_numbers(block[name], kind, name) for name in names)
    return low, high, _mask_of(block, kind, len(low))


def check_constant(block: Mapping[str, Any], kind: str, names: tuple[str, str]) -> None:
    """Refuses a scaled dimension whose ends are equal, unless the block shows elsewhere that the data never move it.

    Raises:
        CheckpointError: there is one: each token would mean the same action.
    """
    low, high, mask = read_range(block, kind, names)
    for dimension, (a, b, scaled) in enumerate(zip(low, high, mask, strict=True)):
        if scaled and a == b and not _is_constant(block, dimension, names):
            raise CheckpointError(
                f"{kind} {names[0]}[{dimension}] and {names[1]}[{dimension}] are both {a:g}: every token of this "
                "dimension would mean the same",
                f'{FIX}; if the data really never move it, say so: "{CONSTANT}" with true for this dimension',
            )


def constant_dimensions(low: Sequence[float], high: Sequence[float], mask: Sequence[bool]) -> dict[str, list[bool]]:
    """Makes the statistics' entry that names scaled dimensions which never move; nothing if there is none."""
    found = [scaled and a == b for a, b, scaled in zip(low, high, mask, strict=True)]
    return {CONSTANT: found} if any(found) else {}


def _is_constant(block: Mapping[str, Any], dimension: int, names: tuple[str, str]) -> bool:
    try:
        others = [pair for pair in PAIRS if pair != names and all(name in block for name in pair)]
        return (
            (CONSTANT in block and block[CONSTANT][dimension] is True)
            or ("std" in block and block["std"][dimension] == 0)
            or any(block[a][dimension] == block[b][dimension] for a, b in others)
        )
    except (LookupError, TypeError):  # entries that nothing else reads
        return False


def _check_order(block: Mapping[str, Any], what: str, pair: tuple[str, str]) -> None:
    low, high = (_numbers(block[name], what, name) for name in pair)
    if len(low) != len(high):
        raise CheckpointError(f"{what} {pair[0]} has {len(low)} dimensions and {pair[1]} {len(high)}", FIX)
    scaled = _mask_of(block, what, len(low))  # True where scaled; bounds of other dimensions are not read
    for dimension, (a, b) in enumerate(zip(low, high, strict=True)):
        if scaled[dimension] and a > b:
            raise CheckpointError(f"{what} {pair[0]}[{dimension}] is {a:g}, above {pair[1]}[{dimension}], {b:g}", FIX)


def _numbers(values: Any, what: str, name: str) -> list[float]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise CheckpointError(f"{what} {name} is {str(values)[:60]!r}, expected a list of numbers", FIX)
    for dimension, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{what} {name}[{dimension}] is {str(value)[:60]!r}, expected a number", FIX)
        if not math.isfinite(value):
            raise CheckpointError(f"{what} {name}[{dimension}] is {value}, expected a finite number", FIX)
    return [float(value) for value in values]


def _mask_of(block: Mapping[str, Any], what: str, dimensions: int) -> list[bool]:
    """All dimensions are scaled where there is no mask."""
    values = block.get("mask")
    if values is None:
        return [True] * dimensions
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != dimensions:
        shown = f"{len(values)} entries" if isinstance(values, Sequence) else repr(values)
        raise CheckpointError(f"{what} mask has {shown}, and the statistics {dimensions} dimensions", FIX)
    for dimension, value in enumerate(values):
        if value not in (True, False):
            raise CheckpointError(f"{what} mask[{dimension}] is {str(value)[:60]!r}, expected true or false", FIX)
    return [bool(value) for value in values]
