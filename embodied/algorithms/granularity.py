"""How fine rewards, log-probs and entropies are counted, and which of them count at all.

Shape letters: N records, K actions of a chunk, A numbers of an action, T = K·A tokens ordered K-major (token k·A + a is
number a of action k), M elements of a record at some level: T (``token_level``), K (``action_level``) or
1 (``chunk_level``), V = K or 1 rewards of a record.

A chunk stops at the step that ends the episode; its remaining actions were never executed. What is stored there may be
anything, NaN included, so every function here *selects* instead of multiplying by zero, and does it before any other
arithmetic: neither a value nor a gradient passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied.errors import UnknownNameError, unknown_name

REWARD_LEVELS = ("chunk_level", "action_level")
LEVELS = ("token_level", "action_level", "chunk_level")


def step_mask(num_steps: Tensor, num_action_chunks: int) -> Tensor:
    """Which of the K actions were executed: ``num_steps`` int [N], each in 1..K → bool [N, K]."""
    return torch.arange(num_action_chunks, device=num_steps.device) < num_steps[:, None]


def mask(num_steps: Tensor, num_action_chunks: int, action_dim: int, level: str) -> Tensor:
    """Which elements count at ``level``: ``num_steps`` int [N] → bool [N, M].

    Raises:
        UnknownNameError: ``level`` is none of :data:`LEVELS`.
    """
    steps = step_mask(num_steps, num_action_chunks)
    if level == "token_level":
        return steps.repeat_interleave(action_dim, dim=1)
    if level == "action_level":
        return steps
    if level == "chunk_level":
        return steps.any(dim=1, keepdim=True)
    raise _unknown_level(level, "algorithm.logprob_type (or entropy_type)")


def reduce_rewards(rewards: Tensor, num_steps: Tensor, reward_type: str) -> Tensor:
    """Rewards of the K steps, float [N, K] → float [N, V]: their sum (``chunk_level``) or one for each
    (``action_level``); zero where nothing was executed.

    Raises:
        UnknownNameError: ``reward_type`` is none of :data:`REWARD_LEVELS`.
    """
    counted = _select(rewards, step_mask(num_steps, rewards.shape[1]))
    if reward_type == "chunk_level":
        return counted.sum(dim=1, keepdim=True)
    if reward_type == "action_level":
        return counted
    raise unknown_name("reward type", reward_type, REWARD_LEVELS, "algorithm.reward_type")


def reduce_logprobs(logprobs: Tensor, num_steps: Tensor, num_action_chunks: int, logprob_type: str) -> Tensor:
    """Log-probs of tokens, float [N, T] → of tokens, actions or chunks, float [N, M]; zero where nothing was executed.

    The log-prob of an action is the sum over its tokens, that of a chunk the sum over its executed actions.

    Raises:
        UnknownNameError: ``logprob_type`` is none of :data:`LEVELS`.
    """
    return _reduce(logprobs, num_steps, num_action_chunks, logprob_type, "algorithm.logprob_type")


def reduce_entropy(entropy: Tensor, num_steps: Tensor, num_action_chunks: int, entropy_type: str) -> Tensor:
    """Entropies of tokens in nats, float [N, T] → summed to float [N, M], like :func:`reduce_logprobs`.

    Raises:
        UnknownNameError: ``entropy_type`` is none of :data:`LEVELS`.
    """
    return _reduce(entropy, num_steps, num_action_chunks, entropy_type, "algorithm.entropy_type")


def sum_elements(values: Tensor, num_action_chunks: int, reward_type: str) -> Tensor:
    """What the elements of each reward add up to: float [N, M], zero where nothing was executed → float [N, V].

    Raises:
        ValueError: one element a record (``chunk_level``), but a reward for each of K > 1 actions.
        UnknownNameError: ``reward_type`` is none of :data:`REWARD_LEVELS`.
    """
    if reward_type not in REWARD_LEVELS:
        raise unknown_name("reward type", reward_type, REWARD_LEVELS, "algorithm.reward_type")
    if reward_type == "chunk_level":
        return values.sum(dim=1, keepdim=True)
    if values.shape[1] % num_action_chunks:
        raise ValueError(
            f"got {values.shape[1]} elements a record, which K = {num_action_chunks} rewards do not divide"
        )
    return values.unflatten(1, (num_action_chunks, -1)).sum(dim=2)


def spread(advantages: Tensor, num_action_chunks: int, action_dim: int, level: str) -> Tensor:
    """One advantage for each element at ``level``: float [N, V] → float [N, M].

    Raises:
        ValueError: an advantage for each action (V = K > 1), but a single ratio for the whole chunk.
        UnknownNameError: ``level`` is none of :data:`LEVELS`.
    """
    records, per_record = advantages.shape
    if per_record not in (1, num_action_chunks):
        raise ValueError(f"got {per_record} advantages a record, expected 1 or K = {num_action_chunks}")
    if level == "chunk_level" and per_record > 1:
        raise ValueError(
            f"got {per_record} advantages a record for one ratio: with algorithm.reward_type action_level, "
            "algorithm.logprob_type must be token_level or action_level"
        )
    per_action = advantages.expand(records, num_action_chunks)
    if level == "token_level":
        return per_action.repeat_interleave(action_dim, dim=1)
    if level == "action_level":
        return per_action
    if level == "chunk_level":
        return advantages
    raise _unknown_level(level, "algorithm.logprob_type")


def _select(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, values, torch.zeros_like(values))


def _reduce(values: Tensor, num_steps: Tensor, num_action_chunks: int, level: str, key: str) -> Tensor:
    if level not in LEVELS:
        raise _unknown_level(level, key)
    records, tokens = values.shape
    if tokens % num_action_chunks:
        raise ValueError(f"got {tokens} tokens a record, which K = {num_action_chunks} actions do not divide")
    action_dim = tokens // num_action_chunks
    counted = _select(values, mask(num_steps, num_action_chunks, action_dim, "token_level"))
    if level == "token_level":
        return counted
    per_action = counted.view(records, num_action_chunks, action_dim).sum(dim=2)
    return per_action if level == "action_level" else per_action.sum(dim=1, keepdim=True)


def _unknown_level(level: str, key: str) -> UnknownNameError:
    return unknown_name("level", level, LEVELS, key)
