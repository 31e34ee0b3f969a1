"""FLOPs of a text by formula: two for each multiply-add of a matrix product.

Norms, activations, adapters and the value head are left out, and so is what batches save on equal prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from .trunk import Trunk


@dataclass(frozen=True)
class Work:
    """Counts the FLOPs of a network by token."""

    token: int  # linear layers, a token
    pair: int  # attention, a token and one that it sees
    logits: int  # a token whose logits are computed

    def forward(self, prompt: np.ndarray, response: np.ndarray) -> np.ndarray:
        """Computes the FLOPs of the forward pass of texts with int [n] tokens of prompt and response: float64 [n]."""
        tokens = prompt.astype(np.float64) + response - 1
        return self.token * tokens + self.pair * tokens * (tokens + 1) / 2 + self.logits * response.astype(np.float64)


def work_of(trunk: Trunk) -> Work:
    """Reads the sizes of a network without adapters, from which FLOPs are counted."""
    config = trunk.config
    weights = sum(m.in_features * m.out_features for m in trunk.layers.modules() if isinstance(m, nn.Linear))
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pair = 4 * len(trunk.layers) * config.num_attention_heads * head
    return Work(2 * weights, pair, 2 * config.hidden_size * trunk.vocabulary)
