"""What is added to the rewards of an iteration before advantages are made of them: penalties for length and for KL.

Both are arrays ``[R, V]`` over all rows of the slab, of which only those of records are filled: which episodes are
compared or trained on afterwards does not matter then. V = 1 or K rewards a record (``algorithm.reward_type``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from embodied.algorithms import layout, penalties
from embodied.schema import OverlongPenaltyConfig
from embodied.types import EpisodeResult


def rewards_a_record(arrays: Mapping[str, np.ndarray], reward_type: str) -> int:
    """V."""
    return 1 if reward_type == "chunk_level" else arrays["rewards"].shape[1]


def nothing(arrays: Mapping[str, np.ndarray], reward_type: str) -> np.ndarray:
    """Zeros, float32 [R, V]."""
    return np.zeros((len(arrays["rewards"]), rewards_a_record(arrays, reward_type)), np.float32)


def overlong(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], config: OverlongPenaltyConfig, max_steps: int,
    reward_type: str,
) -> np.ndarray:  # fmt: skip
    """The penalty of each episode's length in control steps, at its last reward: float32 [R, V]."""
    found = nothing(arrays, reward_type)
    last = [result.rows[-1] for result in results]
    steps = torch.from_numpy(arrays["num_steps"][last]).long()
    rewarded = layout.reward_mask(steps, arrays["rewards"].shape[1], reward_type)
    found[last] = penalties.at_the_end(episode_penalties(results, config, max_steps), rewarded).numpy()
    return found


def episode_penalties(
    results: Sequence[EpisodeResult], config: OverlongPenaltyConfig, max_steps: int
) -> torch.Tensor:  # fmt: skip
    """The penalty of each episode, float64 [E]; 0 if there is none."""
    lengths = torch.tensor([result.num_steps for result in results])
    if not config.enable:
        return torch.zeros(len(results), dtype=torch.float64)
    return penalties.overlong(lengths, max_steps, config.buffer_length, config.factor)
