"""Estimates the return that follows a token, from its hidden state: that of the prompt's last, or of each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Linear layer [B, d] → float32 [B, 1]. It begins at zero, so that no advantage depends on random weights."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        # With one column, a matrix product would sum in an order that depends on a row's place in the batch.
        return (hidden.float() * self.weight.float()).sum(dim=-1, keepdim=True) + self.bias.float()
