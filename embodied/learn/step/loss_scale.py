"""Loss scaling for fp16 (Micikevicius et al., arXiv 1710.03740, section 3.2).

Gradients of a mean over many tokens are below fp16's smallest number. So the loss is multiplied before the backward
pass, and the gradients are divided after it. A scale that is too large gives a gradient that is not finite: that update
is left out and the scale halved. The rule is that of ``torch.amp.GradScaler``. The norm of the whole gradient decides;
all ranks have it, so they decide the same without an exchange.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.schema import ActorConfig

LEAST = 1.0  # smallest scale; a gradient that overflows even here has another cause
LARGEST = 2.0**24


@dataclass
class LossScale:
    """Scales the loss. With ``growth_interval`` None the scale stays 1, for formats that need none."""

    value: float = 1.0
    growth_interval: int | None = None  # updates in a row without overflow after which the scale doubles
    good: int = 0  # such updates since the scale last changed

    @classmethod
    def of(cls, actor: ActorConfig) -> LossScale:
        """Reads ``actor.grad_scaler``; by default only models in fp16 are scaled."""
        config = actor.grad_scaler
        if config.enabled or (config.enabled is None and actor.model.precision == "fp16"):
            return cls(config.init_scale, config.growth_interval)
        return cls()

    @property
    def enabled(self) -> bool:
        """Whether the loss is scaled."""
        return self.growth_interval is not None

    def backward(self, loss: Tensor) -> None:
        """Scales a loss and computes its gradients."""
        (loss * self.value if self.enabled else loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of everything that ``optimizer`` trains, in place."""
        if self.enabled:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / self.value)  # a power of two unless told otherwise: exact

    def overflowed(self, loss: float, norm: float) -> bool:
        """Returns whether the scale made this gradient overflow. If so the scale is halved; leave the update out."""
        if not self.enabled or math.isfinite(norm) or not math.isfinite(loss) or self.value <= LEAST:
            return False
        self.value, self.good = max(self.value / 2, LEAST), 0
        return True

    def updated(self) -> None:
        """Counts an update that was made; doubles the scale after ``growth_interval`` of them."""
        if self.growth_interval is None:
            return
        self.good += 1
        if self.good >= self.growth_interval:
            self.value, self.good = min(self.value * 2, LARGEST), 0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "good": self.good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value, self.good = float(state["value"]), int(state["good"])
