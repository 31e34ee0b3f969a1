"""GSPO (arXiv 2507.18071): PPO's loss with one ratio for all elements of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embodied.algorithms.losses import ppo
from embodied.algorithms.policy_loss import Anchor


@dataclass(frozen=True)
class Loss(ppo.Loss):
    """PPO's loss; the old log-probs that it is given are those of ``importance.sequence_level``."""

    anchor: ClassVar[Anchor] = Anchor.SEQUENCE
