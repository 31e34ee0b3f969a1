"""What is learnt from records in which a human overrode the policy (``EnvSpec.interventions``).

    decided   a₀ a₁ a₂ a₃      executed   a₀ h₁ h₂ a₃      remembered   the chunk of a₀ h₁ h₂ a₃, demonstrated

One control step that a human overrode marks the whole record. What critics judge is always what was executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from embodied.errors import ConfigError
from embodied.learn.actor_critic.memory import entries_of
from embodied.protocols import CHUNK, DEMONSTRATED, ActorCritic, ReadsDemonstrations
from embodied.types import EnvSpec, EpisodeResult


def check_interventions(env: EnvSpec, policy: ActorCritic) -> None:
    """Refuses an env whose actions a human may override, with a policy whose chunks cannot be told from actions.

    Raises:
        ConfigError: they do not fit.
    """
    if env.interventions and not (isinstance(policy, ReadsDemonstrations) and policy.reads_actions):
        raise ConfigError(
            f"a human may override the actions of env.train (EnvSpec.interventions), and {type(policy).__name__} "
            "cannot tell with which chunk it would have done the same",
            "set model=head or model=head_residual",
        )


def take_interventions(
    policy: ActorCritic, arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult],
    entries: Mapping[str, np.ndarray],
) -> int:  # fmt: skip
    """Gives entries in which a human overrode the policy the chunk of what was executed, and marks them. Changes
    nothing of others, nor where the env declares no interventions.

    Args:
        arrays: of the slab in which the records of ``results`` stand.
        entries: made of them (:func:`embodied.learn.actor_critic.memory.entries_of`).

    Returns:
        how many are marked.
    """
    if DEMONSTRATED not in arrays:
        return 0
    told = entries_of(arrays, results, [DEMONSTRATED, "actions"])
    marked = told[DEMONSTRATED] & (entries["num_steps"] > 0)
    if DEMONSTRATED in entries:
        entries[DEMONSTRATED][:] = marked
    if marked.any():
        assert isinstance(policy, ReadsDemonstrations)
        device = policy.log_temperature.device
        seen = {name: torch.from_numpy(entries[name][marked]).to(device) for name in policy.reads()}
        actions = torch.from_numpy(told["actions"][marked]).to(device)
        entries[CHUNK][marked] = policy.chunks_of(actions, seen)[0].cpu().numpy()
    return int(marked.sum())
