"""Shares a reward model out over processes, each of which holds a part (``reward.model.strategy`` fsdp2).

    rollouts of all processes end ─▶ batches of each ─▶ the most of them ─▶ as many passes in each ─▶ scores

A pass gathers each layer's weights from all processes, so that all make equally many: one without texts left makes
passes that count nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied.errors import ConfigError
from embodied.parallel.barrier import Interruptible, agree_to_go_on
from embodied.parallel.collectives import together
from embodied.parallel.group import Group
from embodied.parallel.same_weights import check_same_weights
from embodied.parallel.sharding import shard
from embodied.parallel.units import units_of
from embodied.protocols import RewardModel, ScoresInPasses
from embodied.schema import FsdpConfig
from embodied.schema.keys.sections.fsdp import WrapPolicyConfig


class RewardShards:
    """Shares a reward model out, and scores with it. A collective, as is each call.

    Args:
        model: on the CPU.
        min_num_params: of a layer that is gathered by itself.
        group: all processes of the run; of several threads one alone may use it.

    Raises:
        RanksDifferError: the processes hold different weights.
    """

    def __init__(self, model: ScoresInPasses, min_num_params: int, group: Group, device: torch.device) -> None:
        self.model, self._group = model, group
        check_same_weights(model.network, group)
        fsdp = FsdpConfig(strategy="fsdp2", shard_frozen=True, wrap_policy=_wrap(min_num_params))
        self._units = shard(model.network, fsdp, group, device)
        with model.to(device).awake():
            pass  # a network that waits in host memory now goes there

    def __str__(self) -> str:
        return shares_text(self._group.size, len(self._units))

    def __call__(self, prompts: Sequence[str], responses: Sequence[str], stop: Interruptible) -> list[float]:
        """Scores this process's n answers, while the others score theirs. An error before the passes is raised in all.

        Raises:
            Stopped: in all processes, after the same pass; a signal has come in one.
        """
        batches = together(lambda: self.model.batches(prompts, responses))
        most = max(self._group.gather(len(batches)))
        found: dict[int, float] = {}
        with self.model.awake():
            try:
                for batch in [*batches, *({} for _ in range(most - len(batches)))]:
                    agree_to_go_on(self._group, stop)
                    found |= self.model.scores(batch)
            finally:
                for unit in self._units:
                    unit.reshard()
        return [found[index] for index in range(len(prompts))]


def check_can_shard(model: RewardModel) -> ScoresInPasses:
    """Returns the model. Raises :class:`ConfigError` if it cannot be shared out."""
    replicate = "set reward.model.strategy=replicate"
    if not isinstance(model, ScoresInPasses):
        raise ConfigError(
            f"reward.model.strategy is fsdp2, and {type(model).__name__} does not say how it makes its passes",
            f"{replicate}, or add what embodied.protocols.ScoresInPasses has",
        )
    if any(not p.is_floating_point() for p in model.network.parameters()):
        raise ConfigError(
            "reward.model.strategy is fsdp2, which cannot share out layers in 8 or 4 bits: the reward model has some",
            replicate,
        )
    return model


def units_in(model: ScoresInPasses, min_num_params: int) -> int:
    """Returns the number of units into which a model would be shared out."""
    return 1 + len(units_of(model.network, _wrap(min_num_params)))


def shares_text(processes: int, units: int) -> str:
    """Returns the console's words for a model that is shared out."""
    return f"{processes}, each with its part of it (fsdp2, {units} units)"


def _wrap(min_num_params: int) -> WrapPolicyConfig:
    return WrapPolicyConfig(min_num_params=min_num_params)
