"""Penalties for length and for KL, taken from the rewards of an iteration before advantages are computed.

Penalties are arrays ``[R, V]`` over all rows of the slab; only the rows of records are filled. So it does not matter
which episodes are compared or trained on afterwards. V rewards a record, as ``algorithm.reward_type`` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from embodied.algorithms import penalties
from embodied.algorithms.rewards import Rewards
from embodied.errors import ConfigError
from embodied.learn.batch import counts_of
from embodied.learn.step.meters.update_metrics import UpdateMetrics
from embodied.learn.step.passes import ForwardPasses, RankRecords, until_stopped
from embodied.learn.terms.kl import ReferenceKl
from embodied.learn.terms.term import Need, Setup
from embodied.learn.watch import Watch
from embodied.parallel.modes import without_dropout
from embodied.schema import OverlongPenaltyConfig
from embodied.types import EpisodeResult, PolicySpec


class RewardPenalties:
    """The penalties that ``reward.overlong_penalty`` and ``algorithm.use_kl_in_reward`` ask for.

    Raises:
        ConfigError: the penalty of the length would grow over more than the longest text.
    """

    def __init__(self, setup: Setup, overlong: OverlongPenaltyConfig) -> None:
        self._setup, self._overlong = setup, overlong
        self._limit = limit = longest(setup.spec, setup.max_steps, setup.algorithm.sampling_params.max_new_tokens)
        if overlong.enable and overlong.buffer_length > limit:
            raise ConfigError(
                f"reward.overlong_penalty.buffer_length {overlong.buffer_length} is more than the {limit} tokens of "
                "the longest text: every text would be penalised",
                f"set reward.overlong_penalty.buffer_length to {limit} or less",
            )
        self._kl = ReferenceKl(setup) if setup.algorithm.use_kl_in_reward else None

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that the penalties need (:class:`Need`)."""
        return frozenset() if self._kl is None else self._kl.needs

    def __call__(
        self, records: RankRecords, evaluate: ForwardPasses, size: int, metrics: UpdateMetrics, watch: Watch
    ) -> np.ndarray | None:
        """Returns the penalties to add to the rewards of this rank's episodes, float32 [R, V]; None if there are none.

        Args:
            size: records of a pass.

        Raises:
            Stopped: on all ranks; ``watch`` has ended it on one.
        """
        if self._kl is None and not self._overlong.enable:
            return None
        found = zero_penalties(records.arrays, self._setup.rewards)
        if self._overlong.enable:
            found += overlong(records.arrays, records.results, self._overlong, self._limit, self._setup.rewards)
        if self._kl is not None:
            coefficient = np.float32(self._setup.kl_coefficient.value)
            found -= coefficient * self._kl_rewards(self._kl, records, evaluate, size, metrics, watch)
        return found

    def _kl_rewards(
        self,
        kl: ReferenceKl,
        own: RankRecords,
        evaluate: ForwardPasses,
        size: int,
        metrics: UpdateMetrics,
        watch: Watch,
    ) -> np.ndarray:
        """KL of each reward's elements towards the reference, before ``β``: float32 [R, V]."""
        rewards, layout = self._setup.rewards, self._setup.layout
        level, rows = self._setup.algorithm.logprob_type, own.rows
        found = zero_penalties(own.arrays, rewards)
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        with torch.no_grad(), without_dropout(own.policy), watch("KL to the reference", len(rows)) as passed:
            for part, _ in until_stopped(parts, passed, own.parallel):
                records, counts = own.gather(part), counts_of(own.arrays, part).to(own.device)
                reference = evaluate.reference(records)
                assert reference is not None
                result = evaluate(records) if kl.exact else reference
                acted = layout.reduce(records["logprobs"], counts, level)
                elements = kl(acted, result, reference, counts)
                metrics.average("train/kl_reference", elements, layout.mask(counts, level))
                found[part] = rewards.sum(elements, level).cpu().numpy()
        return found


def zero_penalties(arrays: Mapping[str, np.ndarray], rewards: Rewards) -> np.ndarray:
    """Returns zero penalties for every record: float32 [R, V]."""
    return np.zeros((len(arrays["rewards"]), rewards.width), np.float32)


def overlong(
    arrays: Mapping[str, np.ndarray], results: Sequence[EpisodeResult], config: OverlongPenaltyConfig, limit: int,
    rewards: Rewards,
) -> np.ndarray:  # fmt: skip
    """The penalty of each episode's length, at its last reward: float32 [R, V]. ``limit``: see :func:`longest`."""
    found = zero_penalties(arrays, rewards)
    last = np.asarray([result.rows[-1] for result in results], np.int64)
    rewarded = rewards.mask(counts_of(arrays, last))
    found[last] = penalties.at_the_end(episode_penalties(results, config, limit), rewarded).numpy()
    return found


def longest(spec: PolicySpec, max_steps: int, most: int | None) -> int:
    """Returns the longest an episode may be: control steps, or tokens if its decisions are texts.

    Args:
        max_steps: most control steps of an episode, each of them an answer if the decisions are texts.
        most: most tokens of an answer (``sampling_params.max_new_tokens``); None = as many as a record holds.
    """
    axis = spec.elements.length_axis
    if axis is None:
        return max_steps
    room = spec.elements.shape[axis]
    return max_steps * min(room, most or room)


def episode_penalties(
    results: Sequence[EpisodeResult], config: OverlongPenaltyConfig, limit: int
) -> torch.Tensor:  # fmt: skip
    """The penalty of each episode's length, float64 [E]; 0 if ``config`` asks for none. ``limit``: see
    :func:`longest`."""
    lengths = torch.tensor([result.num_steps if result.written is None else result.written for result in results])
    if not config.enable:
        return torch.zeros(len(results), dtype=torch.float64)
    return penalties.overlong(lengths, limit, config.buffer_length, config.factor)
