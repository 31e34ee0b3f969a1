"""Actions ↔ tokens: 256 uniform bins over [−1, 1], dataset statistics, gripper conventions.

Bin edges are ``linspace(−1, 1, 256)``, so there are 255 centres ``−1 + (2i + 1)/255``. Token ids fall as actions rise:
``id = vocab − digitize(action)``. The lowest id and the one above it both mean the top bin, as in OpenVLA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.errors import CheckpointError

from ...shared.constants import constant
from ..network.config import N_BINS
from .statistics import constant_dimensions, read_range

EPS = 1e-8  # OFT's value; it keeps constant dimensions finite
BOUNDS_Q99, BOUNDS = "bounds_q99", "bounds"  # OFT's names for the kinds of normalisation
# Kind → entries of a dataset_statistics.json mapped to −1 and 1: 1 % and 99 % quantile, or minimum and maximum.
ENTRIES = {BOUNDS_Q99: ("q01", "q99"), BOUNDS: ("min", "max")}


class ActionTokenizer:
    """Converts normalised actions to token ids and back, numpy or torch alike.

    Args:
        vocab_size: unpadded vocabulary; the action tokens are its last 256 ids (31744 … 31999 of 32000).
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.edges = np.linspace(-1.0, 1.0, N_BINS)
        self.centres = (self.edges[:-1] + self.edges[1:]) / 2
        self._edges, self._centres = tuple(self.edges.tolist()), tuple(self.centres.tolist())

    def encode(self, actions: Any) -> Any:
        """Turns normalised actions, clipped to [−1, 1], into token ids (int64) of the same shape."""
        if isinstance(actions, Tensor):
            edges = constant(self._edges, torch.float64, actions.device)
            return self.vocab_size - torch.bucketize(actions.double().clamp(-1.0, 1.0), edges, right=True)
        return self.vocab_size - np.digitize(np.clip(actions, -1.0, 1.0), self.edges)

    def decode(self, ids: Any) -> Any:
        """Turns token ids into the centres of their bins, float64."""
        if isinstance(ids, Tensor):
            index = (self.vocab_size - ids.long() - 1).clamp(0, N_BINS - 2)
            return constant(self._centres, torch.float64, ids.device)[index]
        return self.centres[np.clip(self.vocab_size - np.asarray(ids, dtype=np.int64) - 1, 0, N_BINS - 2)]


@dataclass(frozen=True)
class Range:
    """Scales [low, high] of each dimension to [−1, 1] and back; dimensions outside ``mask`` are not scaled."""

    low: tuple[float, ...]  # [D], 1 % quantile or minimum of the data
    high: tuple[float, ...]  # [D], 99 % quantile or maximum
    mask: tuple[bool, ...]  # [D]
    kind: str = BOUNDS_Q99  # a key of ENTRIES

    @classmethod
    def from_statistics(cls, statistics: Mapping[str, Any], what: str, kind: str = BOUNDS_Q99) -> Range:
        """Reads one block of a dataset_statistics.json: the two entries of ``kind`` and, for actions, mask.

        Raises:
            CheckpointError: an entry is missing, its dimensions do not belong together, a number is not finite, or a
                low end is above the high one.
        """
        if any(name not in statistics for name in ENTRIES[kind]):
            raise _missing_entries(statistics, what, kind)
        low, high, mask = read_range(statistics, what, ENTRIES[kind])
        return cls(tuple(low), tuple(high), tuple(mask), kind)

    def to_statistics(self) -> dict[str, list[Any]]:
        """Converts back to what :meth:`from_statistics` reads."""
        ends = dict(zip(ENTRIES[self.kind], (list(self.low), list(self.high)), strict=True))
        return {**ends, "mask": list(self.mask), **constant_dimensions(self.low, self.high, self.mask)}

    def unnormalize(self, values: Tensor, eps: float = EPS) -> Tensor:
        """Scales […, D] from [−1, 1] to data units. OpenVLA before OFT uses ``eps`` 0."""
        low, high, mask = self._tensors(values)
        return torch.where(mask, 0.5 * (values + 1) * (high - low + eps) + low, values)

    def normalize(self, values: Tensor) -> Tensor:
        """Scales […, D] from data units to [−1, 1]. Unscaled dimensions are clipped too, as in OFT's evaluation."""
        low, high, mask = self._tensors(values)
        return torch.where(mask, 2 * (values - low) / (high - low + EPS) - 1, values).clamp(-1.0, 1.0)

    def _tensors(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low, high = (constant(values, like.dtype, like.device) for values in (self.low, self.high))
        return low, high, constant(self.mask, torch.bool, like.device)


def _missing_entries(statistics: Mapping[str, Any], what: str, kind: str) -> CheckpointError:
    others = [other for other, names in ENTRIES.items() if all(name in statistics for name in names)]
    fix = "add the entries to dataset_statistics.json, or use a checkpoint that has them"
    if others:
        fix = f"set actor.model.action_normalization={others[0]} if the checkpoint was trained so; else {fix}"
    low, high = ENTRIES[kind]
    return CheckpointError(
        f"the {what} statistics have {sorted(statistics)}; action_normalization {kind} needs '{low}' and '{high}'", fix
    )


def gripper_to_env(actions: Tensor, setup: str) -> Tensor:
    """Converts the gripper, the last dimension, from the datasets' convention (0 closed … 1 open) to the env's.

    libero: −1 opens, +1 closes (robosuite). bridge: +1 opens, −1 closes (SimplerEnv, ManiSkill). none: unchanged.
    """
    if setup == "none":
        return actions
    gripper = actions[..., -1:]
    if setup == "libero":
        gripper = -torch.sign(2 * gripper - 1)
    else:
        gripper = 2 * (gripper > 0.5).to(actions.dtype) - 1
    return torch.cat([actions[..., :-1], gripper], dim=-1)


def gripper_from_env(actions: Tensor, setup: str) -> Tensor:
    """Converts the gripper of demonstrations from the env's convention to 0 closed … 1 open: the inverse of
    :func:`gripper_to_env`."""
    if setup == "none":
        return actions
    gripper = (1 + (-1 if setup == "libero" else 1) * actions[..., -1:]) / 2
    return torch.cat([actions[..., :-1], gripper], dim=-1)
