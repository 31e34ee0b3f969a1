"""Makes the table of a run's processes from its keys, and the group of a run that is only planned. Needs no torch."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from itertools import count

from embodied import schema
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.placement.launcher import Launcher, launched_by
from embodied.parallel.placement.place import place
from embodied.parallel.placement.table import Node, NodeSoftware, PlacementTable, Role, SimulatorHost, nodes_of
from embodied.schema.compose.compose import Composed
from embodied.schema.keys.placement import GROUPS, PLACEMENT, NodeGroup, Place, placed


class Planned(Group):
    """The processes of a run that is planned and not started, as rank 0 would see them. Never connected.

    Args:
        settings: of the plan beside those of the command, which these processes could not share.

    >>> from embodied.parallel.placement.table import Rank
    >>> group = Planned(PlacementTable((Node("a", 2),), (Rank(0, "a", 0, 0, frozenset({"train"})), Rank(1, "a", 1, 1))))
    >>> group.size, group.of("rollout").size, group.name
    (2, 1, '')
    """

    table: PlacementTable

    def __init__(self, table: PlacementTable, settings: Sequence[str] = ()) -> None:
        super().__init__(0, len(table.ranks), 0, len(table.on(table.ranks[0].node)))
        self.table, self.settings = table, tuple(settings)

    def of(self, role: Role) -> Group:
        """Returns the group of the planned processes that have ``role``, as the first of them would see it."""
        ranks = [rank for rank in self.table.ranks if role in rank.roles]
        return Group(0, len(ranks), 0, sum(rank.node == ranks[0].node for rank in ranks))

    @property
    def name(self) -> str:
        return ""

    @property
    def device(self) -> int:
        return 0  # of this machine, which counts for another one


def planned(config: schema.Config, processes: Group, settings: Sequence[str] = ()) -> Group:
    """Returns the processes that a dry run plans: those of the cluster that the keys describe, where this process was
    started alone; else ``processes``.

    Args:
        settings: as :class:`Planned` has them.

    Raises:
        ConfigError: the keys place something that cannot be.
    """
    if not config.runner.dry_run or processes.size > 1 or config.runner.task.records:
        return processes
    table = _placed(config, _described(config.cluster))
    return processes if len(table.ranks) == 1 and table.collocated else Planned(table, settings)


def more_slots(composed: Composed, processes: Group) -> list[str]:
    """Returns numbers of env slots that planned processes can share, for those that they cannot and that the command
    does not set."""
    if not isinstance(processes, Planned):
        return []
    config, hosts, learners = composed.config, processes.of("rollout").size, processes.of("train").size
    train, evaluation = config.env.train.total_num_envs, config.env.eval.total_num_envs
    found = {"env.eval.total_num_envs": (evaluation, -(-evaluation // hosts) * hosts)}
    if not schema.only_evaluates(config) and config.data.rollout_batch_size is None:
        unit, epochs = math.lcm(hosts, learners) * config.algorithm.group_size, config.algorithm.rollout_epoch
        shared = (number for number in count(-(-train // hosts) * hosts, hosts) if number * epochs % unit == 0)
        found["env.train.total_num_envs"] = (train, next(shared))
    typed = {one.lstrip("+").partition("=")[0] for one in (composed.trail.expanded if composed.trail else ())}
    return [f"{key}={wanted}" for key, (now, wanted) in found.items() if now != wanted and key not in typed]


def table_of(
    config: schema.Config, processes: Group, environment: Mapping[str, str] = os.environ
) -> PlacementTable:  # fmt: skip
    """Returns the table of a run. Its nodes are those that whoever started the processes describes
    (:data:`embodied.parallel.placement.table.NODES`), else as many as torchrun has, with the keys' devices.

    Raises:
        ConfigError: the keys place something that cannot be, or other processes than were started.
    """
    if processes.table is not None:
        return processes.table
    described = nodes_of(environment)
    if not described and _plans_hosts(config):
        raise _only_by_ray(config)
    table = _placed(config, described or _started(config.cluster, processes, environment))
    _check_started(config, processes, table, alone=launched_by(environment) is None and processes.size == 1)
    return table


def _check_started(config: schema.Config, processes: Group, table: PlacementTable, alone: bool) -> None:
    """Refuses a table of other processes than were started, or started on other machines."""
    first = next(iter(placed(config.cluster)[1].values()), None)
    said = f"{PLACEMENT} gives {first.said}" if first else f"{GROUPS} ignores the devices of some nodes"
    leave = f"leave {PLACEMENT if first else GROUPS} out"
    if len(table.ranks) != processes.size:
        has = "this command alone is one" if alone else f"{processes.size} are started"
        raise ConfigError(
            f"{said}, which is a place for {len(table.ranks)} processes, and {has}",
            leave if config.runner.task.records else f"start {len(table.ranks)} processes, or {leave}",
        )
    own = table.ranks[processes.rank]
    there = len(table.on(own.node))
    if (own.local_rank, there) != (processes.local_rank, processes.local_size):
        raise ConfigError(
            f"{said}, which puts process {own.rank} on {own.node} with {there} processes, and {processes.launcher} has "
            f"started it as number {processes.local_rank} of {processes.local_size} on its machine",
            f"start {there} on that machine (torchrun --node-rank numbers machines), or {leave}",
        )


def _started(cluster: schema.ClusterConfig, processes: Group, environment: Mapping[str, str]) -> list[Node]:
    """Describes the machines of processes whose launcher describes none. Each process knows how many there are, and
    how many processes are on its own; other machines have as many, or the keys say how many.

    Raises:
        ConfigError: others have more or fewer, and the keys do not say it.
    """
    groups, places = placed(cluster)
    told = environment.get("GROUP_WORLD_SIZE", "") if processes.launcher == "torchrun" and processes.size > 1 else ""
    each, nodes = processes.local_size, int(told) if told.isdigit() else processes.num_nodes
    uneven = nodes * each != processes.size or processes.rank % each != processes.local_rank
    if places and uneven and cluster.num_gpus_per_node is None:
        raise ConfigError(
            f"{processes.launcher} has started different numbers of processes on {nodes} machines, {processes.size} in "
            f"all, and {PLACEMENT} counts devices of equal ones",
            "set cluster.num_gpus_per_node to the most processes of one machine (to its devices, where simulators have "
            "some to themselves)",
        )
    if places:
        each = cluster.num_gpus_per_node or max(each, _named(groups, places, nodes))
    elif uneven:
        raise ConfigError(
            f"{processes.launcher} has started {each} of {processes.size} processes on this machine, and another "
            "number on others",
            f"start as many on each; or say how many are where, as 2 on the first machine and 1 on the second: "
            f"cluster.num_gpus_per_node=2 '{PLACEMENT}={{actor: 0-2, rollout: 0-2}}'; or set cluster.launcher=ray",
        )
    return [Node(f"node-{number}", each) for number in range(nodes)]


def local_table(config: schema.Config) -> PlacementTable | None:
    """Returns the table of the processes that ``cluster.launcher=local`` starts; None: the keys place nothing.

    Raises:
        ConfigError: the keys place something that cannot be.
    """
    return None if config.cluster.component_placement is None else _placed(config, _described(config.cluster))


def to_start(config: schema.Config, processes: Group, environment: Mapping[str, str] = os.environ) -> Group:
    """Returns the processes that a command plans or starts where it is called by itself, as the first of them would see
    them; else ``processes``, also where the keys place nothing, or what cannot be."""
    launcher = config.cluster.launcher
    if processes.size > 1 or launched_by(environment) is not None or config.runner.task.records:
        return processes
    try:
        if config.runner.dry_run:
            return planned(config, processes)
        table = local_table(config) if launcher in ("local", "ray") else None
    except ConfigError:  # the rules say it
        return processes
    if table is None or (launcher == "local" and len(table.ranks) == 1):  # which this process is itself
        return processes
    size, here = len(table.ranks), len(table.on(table.ranks[0].node))
    return Group(0, size, 0, here, launcher=launcher or "ray").with_table(table)


def table_of_size(config: schema.Config, size: int, each: int) -> PlacementTable:
    """Returns the table of ``size`` processes, ``each`` on a node and the rest on the last.

    Raises:
        ConfigError: the keys place something that cannot be, or another number of processes.
    """
    counts = [min(each, size - first) for first in range(0, size, each)]
    table = _placed(config, [Node(f"node-{number}", count) for number, count in enumerate(counts)])
    if len(table.ranks) != size:
        raise ConfigError(f"{PLACEMENT} is a place for {len(table.ranks)} processes", f"start as many, not {size}")
    return table


def hosts_of(
    config: schema.Config, processes: Group, environment: Mapping[str, str] = os.environ
) -> tuple[SimulatorHost, ...]:  # fmt: skip
    """Returns the simulator hosts that the placement gives a process of a run; none: its workers are its own.

    Args:
        processes: all, or those of a role.
    """
    described = nodes_of(environment)
    if config.cluster.component_placement is None or not described or not processes.here:
        return ()
    return _placed(config, described).hosts_of(processes.members[processes.rank])


def most_hosts(config: schema.Config, processes: Group) -> int:
    """Returns how many simulator hosts the placement gives a process, at most."""
    if config.cluster.component_placement is None:
        return 0
    found = table_of(config, processes)
    return max(len(found.hosts_of(rank.rank)) for rank in found.ranks)


def software_of(config: schema.Config, environment: Mapping[str, str] = os.environ) -> Mapping[str, NodeSoftware]:
    """Returns what processes run with, by the name of a node, as far as node groups say it."""
    described = nodes_of(environment)
    return _placed(config, described).software if config.cluster.node_groups and described else {}


def _plans_hosts(config: schema.Config) -> bool:
    """Returns whether the placement gives simulators nodes of their own, on a cluster as the keys describe it."""
    try:
        return bool(_placed(config, _described(config.cluster)).hosts)
    except ConfigError:  # the nodes that there are show it better
        return False


def _only_by_ray(config: schema.Config) -> ConfigError:
    return ConfigError(
        f"{PLACEMENT} gives {placed(config.cluster)[1]['env'].said}, nodes without processes, on which only Ray's "
        "launcher can start simulators",
        "set cluster.launcher=ray, on a node of a Ray cluster",
    )


def refuse_unbuilt(config: schema.Config, table: PlacementTable, launcher: Launcher) -> None:
    """Refuses what can be planned and not be run: hosts and interpreters that the launcher cannot start. Raises
    :class:`ConfigError`."""
    if launcher == "ray":
        return
    if table.hosts:
        raise _only_by_ray(config)
    if any(one.python or one.variables for one in table.software.values()):
        raise ConfigError(
            f"{GROUPS} has env_configs, and only Ray's launcher gives a node interpreter and variables of its own",
            "set cluster.launcher=ray, or leave env_configs out; env.python is the interpreter of simulators",
        )


def check(config: schema.Config, processes: Group) -> None:
    """Refuses placements that cannot be, and those that cannot be run. Raises :class:`ConfigError`."""
    if not isinstance(processes, Planned):
        refuse_unbuilt(config, table_of(config, processes), processes.launcher)


def rows(config: schema.Config, processes: Group) -> list[list[str]]:
    """Returns the lines of the table that a run prints at its start: none of one rank with its simulators beside it."""
    table = table_of(config, processes)
    settings = processes.settings if isinstance(processes, Planned) else ()
    to_run = [["to run it", f"add {' '.join(settings)}, without which the processes cannot share the env slots"]]
    return [*table.rows(), *(to_run if settings else [])] if len(table.ranks) > 1 or not table.collocated else []


def _placed(config: schema.Config, nodes: Sequence[Node]) -> PlacementTable:
    groups, places = placed(config.cluster)
    return place(places, groups, nodes, max(config.env.train.total_num_envs, config.env.eval.total_num_envs))


def _described(cluster: schema.ClusterConfig) -> list[Node]:
    """Returns the nodes of a cluster that the keys alone describe. Without ``num_gpus_per_node`` each has as many
    devices as the placement names."""
    groups, places = placed(cluster)
    nodes = cluster.num_nodes or 1
    each = cluster.num_gpus_per_node or _named(groups, places, nodes)
    return [Node(f"node-{number}", each) for number in range(nodes)]


def _named(groups: Sequence[NodeGroup], places: Mapping[str, Place], nodes: int) -> int:
    blind = {number for group in groups if group.ignore_hardware
             for number in (range(nodes) if group.nodes.numbers is None else group.nodes.numbers)}  # fmt: skip
    highest = max(
        (max(one.ranks.numbers) for one in places.values() if one.ranks.numbers and not one.groups), default=0
    )
    return -(-(highest + 1) // max(nodes - len(blind), 1))
