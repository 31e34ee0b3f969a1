"""Layers that are computed again in the backward pass in place of keeping what they computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Recomputed(nn.Module):
    """A layer whose ``compute`` is called again in the backward pass where ``gradient_checkpointing`` is set."""

    gradient_checkpointing = False

    def forward(self, *args: Any) -> Any:
        """Calls ``compute``."""
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(self.compute, *args, use_reentrant=False)
        return self.compute(*args)

    def compute(self, *args: Any) -> Any:
        """Computes the layer."""
        raise NotImplementedError(type(self).__name__)
