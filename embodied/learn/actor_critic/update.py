"""The loss of one update of soft actor-critic: a sum of three terms, whose gradients one backward pass makes.

| term | reads | gradients of |
|---|---|---|
| critics | chunks that were executed; targets of the target critics | ``critic.…`` |
| actor | chunks that the actor draws now; critics whose weights are frozen | ``actor.…`` |
| temperature | log-probs of these chunks | ``log_temperature`` |

All three see the weights from before the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms import soft_actor_critic as sac
from embodied.protocols import CHUNK, ActorCritic
from embodied.random import Stream, generator
from embodied.schema import SacConfig

MEASURED = {
    "train/critic_loss": False, "train/actor_loss": True, "train/q_mean": False, "train/q_target_mean": False,
    "train/policy_entropy": True,
}  # fmt: skip
"""Metric → whether the actor's term measures it, which not every update has."""


@dataclass(frozen=True)
class Draws:
    """The random numbers of an update on one rank: a function of seed, update and rank."""

    now: Tensor  # float32 [B, D], noise of the chunks that the actor term draws
    after: Tensor  # float32 [B, D], noise of the chunks at the next observations
    critics: Tensor | None  # int64 [m], critics of which the target takes the least; None = all

    @classmethod
    def of(
        cls, seed: int, update: int, rank: int, shape: tuple[int, int], critics: int, subset: int | None,
        device: torch.device,
    ) -> Draws:  # fmt: skip
        """Draws the numbers.

        Args:
            shape: B, D.
            critics: E.
            subset: m; None = all critics count.
        """
        random = generator(seed, Stream.ACTOR_CRITIC, update, 1 + rank)
        noise = torch.from_numpy(random.standard_normal((2, *shape), dtype=np.float32)).to(device)
        chosen = None
        if subset is not None and subset < critics:
            same = generator(seed, Stream.ACTOR_CRITIC, update, 0)  # all ranks take the same critics
            chosen = torch.from_numpy(same.choice(critics, subset, replace=False)).to(device)
        return cls(noise[0], noise[1], chosen)

    def part(self, rows: slice) -> Draws:
        """Returns the numbers of some transitions."""
        return Draws(self.now[rows], self.after[rows], self.critics)


@dataclass(frozen=True)
class Transitions:
    """B transitions of n records each: what was observed and done, the rewards, and what was observed after them."""

    before: Mapping[str, Tensor]  # fields that actor and critics read, and the chunk
    after: Mapping[str, Tensor]  # fields that actor and critics read
    rewards: Tensor  # float32 [B], discounted sum
    discounts: Tensor  # float32 [B], of the value after them; 0 where the episode terminated

    def __len__(self) -> int:
        return len(self.rewards)

    def part(self, rows: slice) -> Transitions:
        """Returns some of the transitions."""
        before, after = ({name: values[rows] for name, values in each.items()} for each in (self.before, self.after))
        return Transitions(before, after, self.rewards[rows], self.discounts[rows])


class Loss:
    """Computes the loss of transitions.

    Args:
        entropy: that the temperature aims at, nats.
    """

    def __init__(self, policy: ActorCritic, options: SacConfig, entropy: float) -> None:
        self._policy, self._options, self._entropy = policy, options, entropy

    def __call__(self, batch: Transitions, draws: Draws, share: float, acts: bool) -> tuple[Tensor, Tensor]:
        """Computes the loss, and what is measured.

        Args:
            share: weight of a transition: 1 / those of the whole update.
            acts: actor and temperature learn in this update, too.

        Returns:
            the loss float32 [], and the sums of :data:`MEASURED` over the transitions float32 [M]; those of
            the actor's term are 0 unless ``acts``.
        """
        policy, temperature = self._policy, self._policy.log_temperature.exp().detach()
        with torch.no_grad():
            chunks, logprobs = policy.propose(batch.after, draws.after)
            after = policy.judge(batch.after, chunks, "target")
            targets = sac.target(batch.rewards, batch.discounts, after, logprobs, temperature, draws.critics)
        values = policy.judge(batch.before, batch.before[CHUNK])
        critic = sac.critic_loss(values, targets).sum()
        nothing = torch.zeros_like(critic)
        measured = [critic, nothing, values.mean(0).sum(), targets.sum(), nothing]
        total = critic
        if acts:
            chunks, logprobs = policy.propose(batch.before, draws.now)
            judged = policy.judge(batch.before, chunks, "frozen")
            actor = sac.actor_loss(judged, logprobs, temperature, self._options.actor_critics == "least").sum()
            measured[1], measured[4] = actor, -logprobs.sum()
            total = total + actor
            if self._options.learn_temperature:
                found = sac.temperature_loss(policy.log_temperature, logprobs.detach(), self._entropy)
                total = total + found.sum()
        return total * share, torch.stack([each.detach() for each in measured])
