"""Which processes of a run collect episodes, and which train (``cluster.component_placement``). Needs no torch.

| placement | a process | records |
|---|---|---|
| collocated, ``all`` | does both | are trained on where they were collected |
| disaggregated, ``{actor: 0-1, rollout: 2-3}`` | does one of both | go to the processes that train, once |
| hybrid, ``{actor: 0-3, rollout: 2-3}`` | does one or both | go to the processes that train, once |
"""

from __future__ import annotations

from embodied import schema
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.run.placement.table import Planned, table_of

TOGETHER = "leave cluster.component_placement out, so that each process collects and trains"


def placed(config: schema.Config, processes: Group) -> Group:
    """Returns the processes of a run with their roles.

    Raises:
        ConfigError: the placement cannot be.
    """
    if isinstance(processes, Planned) or (processes.size == 1 and config.cluster.component_placement is None):
        return processes
    return processes.with_table(table_of(config, processes))


def check(config: schema.Config, processes: Group) -> None:
    """Refuses what processes with different roles cannot do or share. Raises :class:`ConfigError`."""
    split = len(processes.table.kinds) > 1 if isinstance(processes, Planned) else processes.is_split
    if not split:
        return
    reward, rollout = config.reward, config.rollout
    for wrong, what in (
        (config.runner.task.supervised, f"runner.task_type is {config.runner.task_type}, whose processes all train"),
        (rollout.backend != "native", f"rollout.backend is {rollout.backend}, which reads the weights of its process"),
        (
            config.algorithm.max_staleness > 1,
            f"algorithm.max_staleness is {config.algorithm.max_staleness}: a process that only collects keeps one set "
            "of weights, enough for 1",
        ),
        (
            schema.context_parallel_size(config) > 1,
            "actor.model.context_parallel_size is above 1: neighbours compute texts of episodes that they collected",
        ),
        (
            reward.use_reward_model and reward.model.sharded,
            f"reward.model.strategy is {reward.model.strategy}, which shares the reward model out over all processes",
        ),
    ):
        if wrong:
            raise ConfigError(f"cluster.component_placement gives processes different roles, and {what}", TOGETHER)
    if schema.only_evaluates(config):
        return
    learners = processes.of("train").size
    groups = schema.episodes_per_iteration(config) // config.algorithm.group_size
    if groups % learners:
        raise ConfigError(
            f"the number of groups, {schema.episodes_told(config)} / group_size {config.algorithm.group_size}, is "
            f"{groups}, and the {learners} processes that train cannot share them equally",
            f"make it a multiple of {learners}, or let another number of processes train (actor in "
            "cluster.component_placement)",
        )
