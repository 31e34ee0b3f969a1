"""AIPO (LlamaRL, arXiv 2505.24034): a truncated ratio without a lower clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from embodied.algorithms.importance import log_ratio
from embodied.algorithms.policy_loss import Anchor, PolicyLoss


@dataclass(frozen=True)
class Loss:
    """``−min(ρ, rho)·A``: AIPO's loss, a policy gradient with a capped importance ratio ρ.

    Departure: beyond ``rho`` an element has no gradient, as in Cosmos-RL, where the paper's has ``rho · A · ∇lp``. The
    paper's gradient is that of ``cispo`` with ``clip_ratio_high = rho − 1`` and ``clip_ratio_low`` close to 1.
    """

    aipo_rho: float = 5.0

    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
        ratio = log_ratio(logprobs, old_logprobs).exp()
        loss = -ratio.clamp(max=self.aipo_rho) * advantages
        return PolicyLoss(loss, ratio.detach(), ratio.detach() > self.aipo_rho)
