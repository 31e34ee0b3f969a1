"""Defaults of verl that results depend on, and that are others here. Its recipes are scripts that name only what
differs from its defaults, so a file that leaves such a key out still means verl's value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from embodied.schema.foreign import LEFT_OFF, Row, find

VERL = (
    "algorithm.adv_estimator", "algorithm.gamma", "algorithm.lam", "data.train_batch_size", "data.max_prompt_length",
    "data.max_response_length", "actor_rollout_ref.rollout.n", "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_c", "actor_rollout_ref.actor.loss_agg_mode", "actor_rollout_ref.actor.shuffle",
    "actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.optim.weight_decay", "trainer.total_epochs",
    "trainer.val_before_train",
)  # fmt: skip
NOT_TEXTS = ("data.task_suite_name", "actor_rollout_ref.model.vla", "model.partial_pretrain")
"""Keys of SimpleVLA-RL and of verl's supervised training, whose defaults are others."""


def left_out(system: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of :data:`VERL` that a configuration of verl for texts leaves out, with verl's values.

    Args:
        system: as ``embodied migrate --from`` has it.
        flat: their dotted keys and values.
    """
    if system != "verl" or "data.train_files" not in flat or any(key in flat for key in NOT_TEXTS):
        return {}
    if not any(key.startswith("actor_rollout_ref.") for key in flat):
        return {}
    short = {key: key.removeprefix(LEFT_OFF["verl"]) for key in VERL}
    return {key: _value(find(key, ["verl"])[0]) for key in VERL if key not in flat and short[key] not in flat}


def _value(row: Row) -> Any:
    return yaml.safe_load(row.default)
