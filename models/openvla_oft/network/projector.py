"""Small networks that project features to the width of the language model."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .config import NetConfig


class Projector(nn.Module):
    """Maps patch features [B, N, D1 + D2] to token embeddings [B, N, d]: the "fused-gelu-mlp" of the checkpoints."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.vision_width, 4 * config.vision_width)
        self.fc2 = nn.Linear(4 * config.vision_width, config.hidden_size)
        self.fc3 = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, features: Tensor) -> Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(features)))))


class ProprioProjector(nn.Module):
    """Maps a normalised robot state [B, S] to one token embedding [B, 1, d]."""

    def __init__(self, proprio_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(proprio_dim, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, state: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(state))).unsqueeze(1)
