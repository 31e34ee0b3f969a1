"""Which processes of a run collect episodes, and which train (``cluster.component_placement``). Needs no torch.

| placement | a process | records |
|---|---|---|
| collocated, ``all`` | does both | are trained on where they were collected |
| disaggregated, ``{actor: 0-1, rollout: 2-3}`` | does one of both | go to the processes that train, once |
| hybrid, ``{actor: 0-3, rollout: 2-3}`` | does one or both | go to the processes that train, once |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied import schema
from embodied.errors import ConfigError, unknown_name
from embodied.parallel.group import Group, Role

COMPONENTS: Mapping[str, Role] = {
    "actor": "train", "rollout": "rollout", "env": "rollout", "inference": "train", "reward": "rollout",
    "critic": "train", "reference": "train",
}  # fmt: skip
"""What ``cluster.component_placement`` may name, and the role whose processes do it."""
FIRST: Mapping[Role, str] = {"train": "actor", "rollout": "rollout"}
"""The component that says where a role is."""
TOGETHER = "leave cluster.component_placement out, so that each process collects and trains"


def placed(cluster: schema.ClusterConfig, processes: Group) -> Group:
    """Returns the processes of a run with their roles.

    Raises:
        ConfigError: the placement names unknown components, ranks that there are not, or leaves a process without role.
    """
    return processes.with_roles(roles_of(cluster, processes.size))


def roles_of(cluster: schema.ClusterConfig, size: int) -> dict[Role, tuple[int, ...]]:
    """Reads the ranks of each role from ``cluster.component_placement``: those of a role that is not named are all.

    Raises:
        ConfigError: as :func:`placed`.
    """
    given = cluster.component_placement or {}
    named = {name.strip(): where for names, where in given.items() for name in names.split(",")} \
        if isinstance(given, dict) else dict.fromkeys(COMPONENTS, given)  # fmt: skip
    for name in named:
        if name not in COMPONENTS:
            raise unknown_name("component", name, COMPONENTS, "the names in cluster.component_placement")
    ranks = {name: _ranks(name, where, size) for name, where in named.items()}
    everyone = tuple(range(size))
    roles = {role: ranks.get(name, everyone) for role, name in FIRST.items()}
    for name, found in ranks.items():
        if found != roles[COMPONENTS[name]]:
            first = FIRST[COMPONENTS[name]]
            raise ConfigError(
                f"cluster.component_placement gives {name} {named[name]}, and {first} is on {_shown(ranks, first)}: "
                f"the processes of {first} do the work of {name} as well",
                f"give {name} the processes of {first}, or leave {name} out",
            )
    if idle := sorted({*everyone} - {rank for found in roles.values() for rank in found}):
        raise ConfigError(
            f"cluster.component_placement gives process {idle[0]} of {size} nothing to do",
            "name each process for actor, rollout, or both",
        )
    return roles


def _shown(ranks: Mapping[str, tuple[int, ...]], name: str) -> str:
    return ", ".join(map(str, ranks[name])) if name in ranks else "all"


def _ranks(component: str, where: Any, size: int) -> tuple[int, ...]:
    """Reads the ranks of a component. Raises :class:`ConfigError` if they cannot be read, or there are none such."""
    try:
        found = set(where) if isinstance(where, list) else set(_parsed(str(where), size))
    except ValueError:
        raise ConfigError(
            f"cluster.component_placement gives {component} {where!r}", "write all, a number, 0-3, or a list"
        ) from None
    if not found or not found <= set(range(size)):
        raise ConfigError(
            f"cluster.component_placement gives {component} {where}, and the run has processes 0 to {size - 1}",
            "start as many processes as it names, or name fewer",
        )
    return tuple(sorted(found))


def _parsed(text: str, size: int) -> list[int]:
    if text == "all":
        return list(range(size))
    found = list[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def check(config: schema.Config, processes: Group) -> None:
    """Refuses what processes with different roles cannot do or share. Raises :class:`ConfigError`."""
    roles_of(config.cluster, processes.size)
    if not processes.is_split:
        return
    reward, rollout = config.reward, config.rollout
    for wrong, what in (
        (config.runner.task.supervised, f"runner.task_type is {config.runner.task_type}, whose processes all train"),
        (rollout.backend != "native", f"rollout.backend is {rollout.backend}, which reads the weights of its process"),
        (
            config.algorithm.max_staleness > 1,
            f"algorithm.max_staleness is {config.algorithm.max_staleness}: processes that only collect keep one set of "
            "weights",
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
