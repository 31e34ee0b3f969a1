"""Small heads beside the network: values, the learned standard deviation of Flow-Noise, and the Gaussian from which
``noise_policy`` draws the noise that a chain begins with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sizes import Sizes


class ValueHead(nn.Module):
    """Estimates returns from the trunk's last hidden state: its mean over the prefix [B, d] → float32 [B, V]."""

    def __init__(self, width: int, values: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 512), nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, values, bias=False)

    def forward(self, hidden: Tensor, present: Tensor) -> Tensor:
        """Computes values of hidden states [B, P, d], of which ``present`` bool [B, P] count."""
        features = F.gelu(self.fc2(F.gelu(self.fc1(mean_present(hidden, present)))))
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


class NoisePolicyHead(nn.Module):
    """Gives ``noise_policy`` the Gaussian of the first noise, from a feature: [B, d] → mean and standard deviation
    [B, K, W].

    It begins as N(0, 1) to the bit, which is the noise of the policy that it steers. That policy has never denoised
    what lies far out, so the mean stays within ±3, and the standard deviation between 1/4 and 4.
    """

    MEAN, LOG_STD = 3.0, math.log(4)

    def __init__(self, width: int, executed: int, actions: int, hidden: int = 256) -> None:
        super().__init__()
        self.shape = (2, executed, actions)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 2 * executed * actions)
        for parameter in self.fc3.parameters():
            nn.init.zeros_(parameter)

    def forward(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        found = self.fc3(F.silu(self.fc2(F.silu(self.fc1(feature))))).unflatten(-1, self.shape)
        mean, log_std = found.unbind(1)
        return _within(mean, self.MEAN), _within(log_std, self.LOG_STD).exp()


def _within(x: Tensor, most: float) -> Tensor:
    """Bounds numbers smoothly; near zero they stay what they are."""
    return most * torch.tanh(x / most)


def feature_width(sizes: Sizes, executed: int) -> int:
    """Numbers of the feature that ``noise_policy`` reads: the trunk's mean token, the state, the mean actions."""
    return sizes.trunk.width + sizes.state_width + executed * sizes.action_width


def mean_present(hidden: Tensor, present: Tensor) -> Tensor:
    """Computes the mean over the tokens that count: [B, P, d], bool [B, P] → float32 [B, d]."""
    kept = torch.where(present[..., None], hidden.float(), 0.0)
    return kept.sum(1) / present.sum(1, keepdim=True)
