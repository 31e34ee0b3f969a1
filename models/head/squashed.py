"""Gaussians that are squashed into [−1, 1] by tanh: drawing, log-densities, and the way back.

With u = mean + std · noise and x = tanh(u), log p(x) = log N(u; mean, std) − log(1 − x²), number by number
(arXiv 1801.01290, appendix C). The last term is computed as 2·(log 2 − u − softplus(−2u)), which does not overflow.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

EDGE = 1 - 1e-6  # the largest number whose way back is finite in float32, with some room
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def draw(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws numbers in [−1, 1]; returns them and their log-densities, both of the shape of ``noise``."""
    latent = torch.addcmul(mean, log_std.exp(), noise)
    return latent.tanh(), _log_density(latent, log_std, noise)


def log_density(numbers: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Computes the log-densities of ``numbers`` in [−1, 1], of their shape. Those at the edge count as beside it."""
    latent = numbers.clamp(-EDGE, EDGE).atanh()
    return _log_density(latent, log_std, (latent - mean) * (-log_std).exp())


def _log_density(latent: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    gaussian = -0.5 * noise.square() - log_std - _HALF_LOG_TAU
    return gaussian - 2 * (math.log(2) - latent - F.softplus(-2 * latent))


def uniform(noise: Tensor) -> Tensor:
    """Maps normal numbers to uniform ones in [−1, 1]."""
    return torch.erf(noise / math.sqrt(2)).clamp(-1, 1)
