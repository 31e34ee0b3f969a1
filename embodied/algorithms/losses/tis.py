"""Truncated importance sampling: PPO's loss around a proximal policy that is not the one that acted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from embodied.algorithms.importance import importance_weight
from embodied.algorithms.losses import ppo
from embodied.algorithms.policy_loss import Anchor


@dataclass(frozen=True)
class Loss(ppo.Loss):
    """PPO's loss around the policy at the beginning of the update, its elements weighed by ``importance_weight``
    (decoupled PPO, arXiv 2110.00641)."""

    behav_imp_weight_cap: float | None = 2.0  # largest weight; None for none
    behav_imp_weight_mode: str = "cap"  # cap or mask: what a weight beyond the cap becomes, the cap or 0

    anchor: ClassVar[Anchor] = Anchor.PROXIMAL

    def importance(self, proximal: Tensor, acting: Tensor) -> Tensor:
        return importance_weight(proximal, acting, self.behav_imp_weight_cap, self.behav_imp_weight_mode)
