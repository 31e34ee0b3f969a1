"""Estimates the return from the last prompt token's hidden state; it depends on images, state and instruction."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Maps [B, d] to float32 [B, V]: V = 1 (one value a chunk) or K (one an action)."""

    def __init__(self, hidden_size: int, values: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, 512)
        self.fc2 = nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, values, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        features = F.gelu(self.fc2(F.gelu(self.fc1(hidden.float()))))
        # With so few columns, a matrix product would sum in an order that depends on a row's place in the batch.
        return (features.unsqueeze(1) * self.fc3.weight).sum(dim=-1)
