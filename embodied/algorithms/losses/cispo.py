"""CISPO (MiniMax-M1, arXiv 2506.13585): the weight is clipped, so that every element keeps a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from embodied.algorithms.importance import log_ratio
from embodied.algorithms.policy_loss import Anchor, PolicyLoss


@dataclass(frozen=True)
class Loss:
    """``−sg(clip(ρ, 1−low, 1+high))·A·lp``: CISPO's loss, with a clipped ratio ρ that carries no gradient."""

    clip_ratio_low: float
    clip_ratio_high: float

    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
        ratio = log_ratio(logprobs, old_logprobs).exp().detach()
        weight = ratio.clamp(1 - self.clip_ratio_low, 1 + self.clip_ratio_high)
        return PolicyLoss(-weight * advantages * logprobs, ratio, weight != ratio)
