"""The advantage estimators that ``algorithm.adv_type`` names: one iteration's rewards → one advantage for each.

Estimators of groups (:mod:`embodied.algorithms.advantages.advantages`) give all elements of an episode the same number.
Those of time (:mod:`embodied.algorithms.advantages.temporal`) give each element its own. The caller hands over all
episodes of an iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied.algorithms.advantages import advantages, temporal
from embodied.algorithms.advantages.advantages import Advantages
from embodied.errors import unknown_name


@dataclass(frozen=True)
class Experience:
    """The n rewards of an iteration that count, of E episodes, in the order of time within each episode."""

    rewards: Tensor  # float [n]
    episode_ids: Tensor  # int64 [n], 0..E−1
    group_ids: Tensor  # int64 [E]
    values: Tensor | None = None  # float [n], value of the observation before each reward
    bootstrap: Tensor | None = None  # float [E], the value after the last one
    baselines: Tensor | None = None  # float [E], the return of a greedy episode from the same start, or its value

    @property
    def returns(self) -> Tensor:
        """Sums of the episodes' rewards, float64 [E]."""
        sums = torch.zeros(len(self.group_ids), dtype=torch.float64, device=self.rewards.device)
        return sums.index_add_(0, self.episode_ids, self.rewards.double())


@dataclass(frozen=True)
class Estimate:
    """Advantages of n elements, with counts of their groups and, for gae, value targets."""

    values: Tensor  # float32 [n]
    groups: Advantages  # largest advantage of each episode, and what that says about the groups
    value_targets: Tensor | None  # float32 [n]: A + V before whitening, what the value head should have said


Estimator = Callable[[Experience], Estimate]

_Raw = Callable[[Experience], Tensor]

WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators that are whitened over the batch whatever ``algorithm.normalize_advantages`` says."""


def make_estimator(
    adv_type: str, std_ddof: int = 1, gamma: float = 1.0, gae_lambda: float = 1.0, normalize: bool = False
) -> Estimator:
    """Makes the advantage estimator called ``adv_type`` (``algorithm.adv_type``), e.g. ``grpo`` or ``gae``.

    Args:
        std_ddof: ``algorithm.adv_std_ddof``, for ``grpo`` alone.
        gamma: discount, for ``gae`` and ``reinforce_plus_plus``.
        gae_lambda: for ``gae`` alone.
        normalize: whiten the advantages over all elements.

    Raises:
        UnknownNameError: ``adv_type`` is not known.
    """
    known: dict[str, _Raw] = {
        "grpo": _of_groups(lambda returns, ids: advantages.grpo(returns, ids, std_ddof)),
        "dr_grpo": _of_groups(advantages.dr_grpo),
        "rloo": _of_groups(advantages.rloo),
        "raw": _of_groups(advantages.raw),
        "remax": _less_baselines,
        "start_value": _less_baselines,
        "reinforce_plus_plus": lambda x: temporal.rewards_to_go(x.rewards, x.episode_ids, len(x.group_ids), gamma),
        "reinforce_plus_plus_baseline": _of_groups(advantages.dr_grpo),
        "gae": lambda x: _gae(x, gamma, gae_lambda),
    }
    if adv_type not in known:
        raise unknown_name("advantage type", adv_type, known, "algorithm.adv_type")
    normalize = normalize or adv_type in WHITENED

    def estimate(experience: Experience) -> Estimate:
        values = known[adv_type](experience).double()
        targets = (values + experience.values).float() if experience.values is not None else None
        if normalize:
            values = temporal.whiten(values)
        return Estimate(values.float(), _largest(values.float(), experience), targets)

    return estimate


def _of_groups(function: Callable[[Tensor, Tensor], Advantages]) -> _Raw:
    return lambda x: function(x.returns, x.group_ids).values[x.episode_ids]


def _less_baselines(x: Experience) -> Tensor:
    assert x.baselines is not None
    return advantages.remax(x.returns, x.baselines, x.group_ids).values[x.episode_ids]


def _gae(x: Experience, gamma: float, gae_lambda: float) -> Tensor:
    assert x.values is not None
    assert x.bootstrap is not None
    return temporal.gae(x.rewards, x.values, x.episode_ids, x.bootstrap, gamma, gae_lambda)


def _largest(values: Tensor, x: Experience) -> Advantages:
    zero = torch.zeros(len(x.group_ids), device=values.device)
    return advantages.raw(zero.scatter_reduce(0, x.episode_ids, values.abs(), "amax"), x.group_ids)
