"""PPO's clipped surrogate, with a bound for each side and an optional dual clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from embodied.algorithms.importance import log_ratio
from embodied.algorithms.policy_loss import Anchor, PolicyLoss
from embodied.errors import ConfigError


@dataclass(frozen=True)
class Loss:
    """``−min(ρA, clip(ρ, 1−low, 1+high)·A)``: PPO (arXiv 1707.06347), equation 7, with a bound for each side.

    With ``clip_ratio_c`` the loss of elements with A < 0 is at most ``−c·A``: the dual clip of arXiv 1912.09729.

    Raises:
        ConfigError: ``clip_ratio_c`` is not above 1, so that it would remove every gradient of a bad action.
    """

    clip_ratio_low: float  # ρ below 1 − low gets no gradient where A < 0
    clip_ratio_high: float  # ρ above 1 + high gets no gradient where A > 0
    clip_ratio_c: float | None = None  # ρ above it gets no gradient where A < 0; None for off

    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __post_init__(self) -> None:
        if self.clip_ratio_c is not None and self.clip_ratio_c <= 1:
            raise ConfigError(
                f"algorithm.clip_ratio_c is {self.clip_ratio_c}, expected a number above 1 or null",
                "set algorithm.clip_ratio_c=null (off) or to a usual value: 3.0",
            )

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
        ratio = log_ratio(logprobs, old_logprobs).exp()
        unclipped = -ratio * advantages
        bounded = -ratio.clamp(1 - self.clip_ratio_low, 1 + self.clip_ratio_high) * advantages
        loss = torch.maximum(unclipped, bounded)
        clipped = bounded > unclipped
        if self.clip_ratio_c is not None:
            ceiling = torch.where(advantages < 0, -self.clip_ratio_c * advantages, torch.inf)
            clipped = clipped | (loss > ceiling)
            loss = torch.minimum(loss, ceiling)
        return PolicyLoss(loss, ratio.detach(), clipped)
