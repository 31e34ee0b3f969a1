"""REINFORCE (Williams, 1992)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from embodied.algorithms.importance import log_ratio
from embodied.algorithms.policy_loss import Anchor, PolicyLoss


@dataclass(frozen=True)
class Loss:
    """``−A·lp``: REINFORCE's loss. Off-policy data are not corrected; the old log-probs only give the
    reported ratio."""

    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
        ratio = log_ratio(logprobs, old_logprobs).exp().detach()
        return PolicyLoss(-advantages * logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool))
