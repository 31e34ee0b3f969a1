"""How many starts an iteration has: verl counts prompts, SimpleVLA-RL starts of a robot's episodes, RLinf rounds.

Here an iteration of a robot has ``rollout_epoch · total_num_envs`` episodes, ``group_size`` from each start.
"""

from __future__ import annotations

from typing import Any

from embodied.schema.algorithm import AlgorithmConfig
from embodied.schema.env import EnvSideConfig
from embodied.schema.foreign import Row
from embodied.schema.foreign_said import Lookup, Said, number_of
from embodied.schema.foreign_values import translated

ROBOTS = ("data.task_suite_name", "actor_rollout_ref.model.vla")
"""Keys that SimpleVLA-RL has and verl has not."""
SLOTS = EnvSideConfig.model_fields["total_num_envs"].default
GROUP = AlgorithmConfig.model_fields["group_size"].default


def starts(row: Row, value: Any, get: Lookup) -> Said:
    """verl's prompts of an iteration; of robots the rounds over the default env slots that have as many starts. Where
    they do not come out even, a round is one group."""
    given = number_of(value)
    if given is None or not any(map(get, ROBOTS)):
        return Said(translated(row.ours[0], value), "renamed")
    number, group, slots = int(given), int(number_of(get("data.n_samples")) or GROUP), SLOTS
    rounds, rest = divmod(number * group, slots)
    if rest:
        rounds, slots = number, group
    return Said(
        {"algorithm.rollout_epoch": rounds, "env.train.total_num_envs": slots}, "derived",
        f"{number} starts · {group} episodes = {rounds} rounds · {slots} env slots; fewer rounds of more slots, with "
        "the same product, are as many starts, and faster",
    )  # fmt: skip
