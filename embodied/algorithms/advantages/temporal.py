"""Advantages that differ within an episode: sums over what comes after, and whitening over the whole batch.

Shape letters: n elements (the rewards that count, one a record or one a control step) of E episodes. The elements of an
episode stand in the order of time; episodes may be mixed. Everything is computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor, values: Tensor, episode_ids: Tensor, bootstrap: Tensor, gamma: float, gae_lambda: float
) -> Tensor:
    """``δ = r + γV' − V``, ``A = δ + γλA'``: arXiv 1506.02438, equations 11, 12 and 16, as a recursion from the end.

    Args:
        rewards: float [n].
        values: estimated return before each element, float [n].
        episode_ids: int [n], each in 0..E−1.
        bootstrap: ``V'`` of the last element of each episode, float [E]: 0 where the task ended, the value of the final
            observation where the step limit cut it off.
        gamma: discount of one element.
        gae_lambda: 1 = all later rewards, 0 = the next value alone.

    Returns:
        float64 [n]
    """
    position, length = _positions(episode_ids, len(bootstrap))
    rewards_EL, values_EL = (_table(x, episode_ids, position, length) for x in (rewards, values))
    last = torch.zeros_like(rewards_EL, dtype=torch.bool)
    last[episode_ids, position] = position == length[episode_ids] - 1
    following = torch.cat([values_EL[:, 1:], torch.zeros_like(values_EL[:, :1])], dim=1)
    following = torch.where(last, bootstrap.double()[:, None], following)
    delta = rewards_EL + gamma * following - values_EL
    later = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        # Beyond an episode's end delta is 0, so nothing flows in from there.
        later = delta[:, t] = delta[:, t] + gamma * gae_lambda * later
    return delta[episode_ids, position]


def rewards_to_go(rewards: Tensor, episode_ids: Tensor, episodes: int, gamma: float) -> Tensor:
    """``Σ γ^(k−t) r_k`` over k ≥ t: the discounted return from each element on, float64 [n] (arguments as in
    :func:`gae`)."""
    nothing = torch.zeros(episodes, device=rewards.device)
    return gae(rewards, torch.zeros_like(rewards), episode_ids, nothing, gamma, gae_lambda=1.0)


def whiten(values: Tensor, eps: float = 1e-6) -> Tensor:
    """``(x − mean) / (std + eps)`` with the sample deviation, float [n] → float64 [n].

    Fewer than two elements stay as they are; elements that are all equal become exactly 0.
    """
    exact = values.double()
    if len(exact) < 2:
        return exact
    if bool((exact == exact[0]).all()):
        return torch.zeros_like(exact)
    return (exact - exact.mean()) / (exact.std() + eps)


def explained_variance(values: Tensor, targets: Tensor) -> float | None:
    """``1 − Var(target − value) / Var(target)`` of values and targets float [n].

    1 = perfect, 0 = as good as a constant, below 0 = worse. None if the targets are all equal, or there is only one.
    """
    if len(targets) < 2 or bool((targets == targets[0]).all()):
        return None
    exact, errors = targets.double(), (targets - values).double()
    return 1 - (errors.var() / exact.var()).item()


def _positions(episode_ids: Tensor, episodes: int) -> tuple[Tensor, Tensor]:
    """The place of each element in its episode, int64 [n], and the length of each episode, int64 [E]."""
    length = torch.bincount(episode_ids, minlength=episodes)
    order = torch.argsort(episode_ids, stable=True)
    first = length.cumsum(0) - length
    position = torch.empty_like(episode_ids)
    position[order] = torch.arange(len(order), device=order.device) - first[episode_ids[order]]
    return position, length


def _table(values: Tensor, episode_ids: Tensor, position: Tensor, length: Tensor) -> Tensor:
    """[n] → float64 [E, longest], zero beyond an episode's end."""
    longest = int(length.max()) if len(length) else 0
    table = torch.zeros(len(length), max(longest, 1), dtype=torch.float64, device=values.device)
    table[episode_ids, position] = values.double()
    return table
