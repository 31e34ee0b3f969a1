"""Small heads beside the network: values, and the learned standard deviation of Flow-Noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ValueHead(nn.Module):
    """Estimates returns from the trunk's last hidden state: its mean over the prefix [B, d] → float32 [B, V]."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 512), nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, values, bias=False)

    def forward(self, hidden: Tensor, present: Tensor) -> Tensor:
        """Computes values of hidden states [B, P, d], of which ``present`` bool [B, P] count."""
        kept = torch.where(present[..., None], hidden.float(), 0.0)
        mean = kept.sum(1) / present.sum(1, keepdim=True)
        features = F.gelu(self.fc2(F.gelu(self.fc1(mean))))
        # With so few columns, a matrix product would sum in an order that depends on a row's place in the batch.
        return (features.unsqueeze(1) * self.fc3.weight).sum(dim=-1)


class NoiseHead(nn.Module):
    """Gives Flow-Noise its standard deviation, from the expert's last tokens: [B, H, d] → [B, H, W].

    The logarithm of the variance lies between those of two bounds (πRL, arXiv 2510.25889, eq. 4; ReinFlow).
    """

    def __init__(self, width: int, actions: int, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = 2 * math.log(low), 2 * math.log(high)
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, actions)

    def forward(self, tokens: Tensor) -> Tensor:
        share = (torch.tanh(self.fc2(F.silu(self.fc1(tokens)))) + 1) / 2
        return ((self.low + share.float() * (self.high - self.low)) / 2).exp()
