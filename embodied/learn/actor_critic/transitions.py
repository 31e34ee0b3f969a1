"""Makes transitions of remembered entries: what was observed and done, the rewards, and what was observed after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied.algorithms import soft_actor_critic as sac
from embodied.learn.actor_critic.update import Transitions
from embodied.learn.replay.demonstrations import Entries
from embodied.protocols import CHUNK, ActorCritic

NUMBERS = ("rewards", "num_steps", "terminated")


def transitions_at(
    memory: Entries, index: np.ndarray, policy: ActorCritic, n_step: int, gamma: float, device: torch.device
) -> Transitions:  # fmt: skip
    """Makes the transitions that begin with the records ``index`` int64 [B].

    A transition ends after ``n_step`` records, or with the episode. If the episode terminated, nothing is worth
    anything after it; if it was cut off, its last observation is worth what the critics say.

    Args:
        policy: says which fields are read, and prepares them.
        gamma: discount from one control step to the next.
    """
    reads = policy.reads()
    first = memory.batch(index, [*reads, CHUNK, *NUMBERS])
    rewards, steps, terminated = [first["rewards"]], [first["num_steps"]], first["terminated"]
    following, last = index + 1, len(memory) - 1
    for _ in range(n_step - 1):
        found = memory.batch(np.minimum(following, last), NUMBERS)
        goes_on = ~terminated & (found["num_steps"] > 0) & (following <= last)
        rewards.append(found["rewards"])
        steps.append(np.where(goes_on, found["num_steps"], 0))
        terminated = terminated | (goes_on & found["terminated"])
        following = following + goes_on
    after = memory.batch(np.minimum(following, last), reads)
    total, discounts = sac.discounted(
        torch.from_numpy(np.stack(rewards, 1)), torch.from_numpy(np.stack(steps, 1)), gamma
    )
    discounts = torch.where(torch.from_numpy(terminated), 0.0, discounts)

    def moved(arrays: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(arrays[name]).to(device) for name in names}

    before = policy.prepare(moved(first, [*reads, CHUNK]))
    return Transitions(before, policy.prepare(moved(after, reads)), total.to(device), discounts.to(device))
