"""The distribution of tokens: temperature, top-k, top-p, and drawing from it with given uniform numbers.

Shapes: B rows, T tokens, N classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied.logprobs import log_softmax
from embodied.types import Sampling

# Finite, so that a recorded token that falls outside the truncation under newer weights gives no NaN in ratio,
# entropy or gradient; exp of it is exactly zero.
EXCLUDED = -1e4


def log_probs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Computes float32 log-probabilities of the distribution that is sampled: [B, T, N] → [B, T, N]."""
    scaled = logits.float() / sampling.temperature
    if sampling.top_k and sampling.top_k < scaled.shape[-1]:
        threshold = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < threshold, EXCLUDED)
    if sampling.top_p < 1:
        scaled = scaled.masked_fill(~_nucleus(scaled, sampling.top_p), EXCLUDED)
    return log_softmax(scaled, sampling)


def _nucleus(scaled: Tensor, top_p: float) -> Tensor:
    """Marks the fewest most likely classes that reach ``top_p`` together (Holtzman et al. 2020): bool [B, T, N]."""
    probs, order = scaled.detach().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probs.cumsum(dim=-1) - probs
    return torch.zeros_like(probs, dtype=torch.bool).scatter(-1, order, before < top_p)


def draw(logp: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Draws classes int64 [B, T] by inverting the cumulative distribution at ``uniform`` [B, T] in [0, 1).

    Takes the most likely class instead if ``sampling.do_sample`` is false.
    """
    if not sampling.do_sample:
        return logp.argmax(dim=-1)
    cdf = logp.double().exp().cumsum(dim=-1)  # double: 256 float32 roundings would shift the drawn class visibly
    total = cdf[..., -1:].contiguous()
    drawn = torch.searchsorted(cdf, uniform.double().unsqueeze(-1) * total, right=True)
    last = torch.searchsorted(cdf, total)  # the last class with any probability
    return torch.minimum(drawn, last).squeeze(-1)


def entropy(logp: Tensor) -> Tensor:
    """Computes the entropy in nats: [B, T, N] → [B, T]."""
    return -(logp.exp() * logp).sum(dim=-1)
