"""Normalises states and actions, and back, by LeRobot's formulas or openpi's.

========== =============================== ===============================
kind       LeRobot                         openpi
========== =============================== ===============================
mean_std   (x − m) / (s + ε); back x·s + m (x − m) / (s + ε); back x·(s + ε) + m
quantiles  2 (x − q01) / (q99 − q01) − 1   2 (x − q01) / (q99 − q01 + ε) − 1
min_max    as quantiles, with extremes     –
identity   x                               –
========== =============================== ===============================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from embodied.errors import CheckpointError, ConfigError

from ...shared.constants import constant

PAIRS = {
    "mean_std": ("mean", "std"), "quantiles": ("q01", "q99"), "quantile10": ("q10", "q90"), "min_max": ("min", "max"),
    "identity": (),
}  # fmt: skip
"""Kind of normalisation → the two statistics that it reads."""
DEMONSTRATIONS = "demonstrations"
"""Value of statistics_key: the statistics are still to come, with the demonstrations that are cloned."""


@dataclass(frozen=True)
class Scale:
    """How one feature is normalised: kind, its two statistics, and whose formulas."""

    kind: str  # a key of PAIRS
    first: tuple[float, ...] = ()  # mean, or the lower end
    second: tuple[float, ...] = ()  # standard deviation, or the upper end
    eps: float = 1e-8
    openpi: bool = False
    note: Mapping[str, tuple[float, ...]] = field(default_factory=dict, compare=False)  # all statistics by name

    @classmethod
    def of(cls, kind: str, values: Mapping[str, tuple[float, ...]], eps: float, openpi: bool, where: str) -> Scale:
        """Picks the statistics of a kind. Raises CheckpointError if they are missing, or of different lengths."""
        if kind == "identity":
            return cls(kind, note=values)
        if missing := [name for name in PAIRS[kind] if name not in values]:
            raise CheckpointError(
                f"{where} is to be normalised by {kind} and lacks {', '.join(missing)}",
                "use a folder with its statistics, or add them",
            )
        first, second = (values[name] for name in PAIRS[kind])
        if len(first) != len(second):
            raise CheckpointError(f"{where} has {len(first)} and {len(second)} statistics", "use a whole folder")
        for number, (low, high) in enumerate(zip(first, second, strict=True)):
            if not 0 <= high - (0.0 if kind == "mean_std" else low) < math.inf or not math.isfinite(low):
                raise CheckpointError(
                    f"{where} has impossible statistics: of its number {number} {PAIRS[kind][0]} is {low:g} and "
                    f"{PAIRS[kind][1]} {high:g}",
                    "use the folder of a policy that was fine-tuned on a data set without damage",
                )
        return cls(kind, first, second, eps, openpi, values)

    @property
    def width(self) -> int | None:
        """Numbers of the feature; None where nothing tells it."""
        return len(self.first) or None

    @property
    def awaited(self) -> bool:
        """Whether the statistics are still to come, from demonstrations."""
        return self.kind != "identity" and not self.first

    def normalize(self, x: Tensor) -> Tensor:
        """Normalises [..., width]."""
        if self.kind == "identity":
            return x
        first, second = self._values(x)
        if self.kind == "mean_std":
            return (x - first) / (second + self.eps)
        if self.openpi:
            return (x - first) / (second - first + self.eps) * 2.0 - 1.0
        return 2.0 * (x - first) / self._range(first, second) - 1.0

    def denormalize(self, x: Tensor) -> Tensor:
        """Takes back what :meth:`normalize` did."""
        if self.kind == "identity":
            return x
        first, second = self._values(x)
        if self.kind == "mean_std":
            return x * (second + self.eps if self.openpi else second) + first
        if self.openpi:
            return (x + 1.0) / 2.0 * (second - first + self.eps) + first
        return (x + 1.0) * self._range(first, second) / 2.0 + first

    def _values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.awaited:
            raise ConfigError(
                f"the policy waits for the statistics of demonstrations (actor.model.statistics_key={DEMONSTRATIONS})",
                "clone demonstrations (python -m embodied.sft) and go on from that checkpoint, or name a data set",
            )
        return constant(self.first, x.dtype, x.device), constant(self.second, x.dtype, x.device)

    def _range(self, low: Tensor, high: Tensor) -> Tensor:
        found = high - low
        return torch.where(found == 0, torch.full_like(found, self.eps), found)


def padded(x: Tensor, width: int) -> Tensor:
    """Fills the last axis up with zeros."""
    return torch.nn.functional.pad(x, (0, width - x.shape[-1]))
