"""The distribution of the next token: what the keys under ``sampling_params`` make of the network's logits.

In this order: the repetition penalty (Keskar et al., arXiv 1909.05858), no end before ``min_new_tokens``, then
temperature, top-k and top-p (:mod:`embodied.models.shared.sampling`). Rows R are tokens of whatever texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.types import Sampling

from ...shared.sampling import EXCLUDED, log_probs


@dataclass(frozen=True)
class Rows:
    """Inputs to the sampling distributions of R tokens, beside their logits."""

    made: Tensor  # int64 [R], tokens of the response before this one
    seen: Tensor | None  # bool [R, V], tokens that stand in the prompt or in the response so far; None = not needed


def next_token(logits: Tensor, rows: Rows, sampling: Sampling, ends: Tensor) -> Tensor:
    """Computes log-probs float32 [R, V] of the next token under ``sampling``: temperature, top-k, top-p, penalties,
    fewest tokens.

    Args:
        logits: float32 [R, V].
        ends: ids of the tokens that end a text, int64 [E].
    """
    if sampling.repetition_penalty != 1.0:
        assert rows.seen is not None
        penalty = sampling.repetition_penalty
        logits = torch.where(rows.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if sampling.min_new_tokens > 0 and not sampling.ignore_eos and len(ends):
        early = (rows.made < sampling.min_new_tokens).unsqueeze(-1)
        closed = torch.zeros_like(logits[:1], dtype=torch.bool).index_fill(-1, ends, True)
        logits = logits.masked_fill(early & closed, EXCLUDED * sampling.temperature)
    return log_probs(logits.unsqueeze(0), sampling).squeeze(0)


def first_seen(prompts: Tensor, lengths: Tensor, tokens: Tensor, vocabulary: int) -> Tensor:
    """Computes from which position of the response each token of the vocabulary has been seen: int32 [B, V].

    0 for tokens of the prompt, j + 1 for one whose first place in the response is j; a large number for the others.

    Args:
        prompts: int64 [B, P], right-padded.
        lengths: of the prompts, int64 [B].
        tokens: int64 [B, n]; what stands behind a response's end counts for positions behind it alone.
    """
    never = tokens.shape[1] + 1
    places = torch.arange(prompts.shape[1], device=prompts.device)
    in_prompt = torch.where(places < lengths.unsqueeze(1), 0, never).int()
    in_response = torch.arange(1, never, device=tokens.device, dtype=torch.int32).expand_as(tokens)
    found = torch.full((len(prompts), vocabulary), never, dtype=torch.int32, device=tokens.device)
    ids, since = torch.cat([prompts, tokens], 1), torch.cat([in_prompt, in_response], 1)
    return found.scatter_reduce(1, ids, since, "amin")
