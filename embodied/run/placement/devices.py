"""Which devices the simulators of a process render on, as the placement says it, and what a machine cannot give of it.

Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from embodied import schema
from embodied.errors import ConfigError
from embodied.lib.spans import as_spans
from embodied.parallel.group import Group
from embodied.parallel.placement.launcher import launched_by
from embodied.parallel.placement.table import PlacementTable
from embodied.run.placement.table import Planned, table_of
from embodied.runtime.pool.placement import RENDER_VARIABLES, visible_names
from embodied.schema.keys.placement import PLACEMENT, placed


def renders_of(config: schema.Config, processes: Group) -> tuple[int, ...] | None:
    """Returns the devices on which the simulators beside a process render, counted among those that it sees; None: the
    placement does not say it."""
    own, table = processes.placed, processes.table
    if own is None or table is None or table.hosts_of(own.rank) or not _says_devices(config, table):
        return None
    return processes.seen(own.renders)


def _says_devices(config: schema.Config, table: PlacementTable) -> bool:
    """Returns whether the keys number the devices of simulators. Devices of processes that compute on CPUs are none,
    unless simulators have others."""
    if config.runner.device == "cpu" and not table.renders_elsewhere:
        return False
    places = placed(config.cluster)[1]
    found = [places[name] for name in ("env", "rollout") if name in places]
    return any(one.groups or one.ranks.numbers is not None for one in found)


def check(config: schema.Config, processes: Group, environment: Mapping[str, str] = os.environ) -> None:
    """Refuses devices that this machine does not show, and two sayings of where simulators render.

    Raises:
        ConfigError: it names the key, and the node.
    """
    table = table_of(config, processes)
    if table.renders_elsewhere:
        _check_said_once(config, processes)
    planned = isinstance(processes, Planned) or (processes.launcher == "ray" and launched_by(environment) != "ray")
    if config.cluster.component_placement is None or planned:  # the machine is another one
        return
    if table.renders_elsewhere:
        _check_variables(config, environment)
    _check_visible(config, processes, table, environment)


def _env(config: schema.Config) -> str:
    return f"{PLACEMENT} gives {placed(config.cluster)[1]['env'].said}"


def _check_said_once(config: schema.Config, processes: Group) -> None:
    if config.env.render_gpus is not None:
        raise ConfigError(
            f"{_env(config)}, and env.render_gpus is {config.env.render_gpus}: both say where simulators render",
            "leave one of them out",
        )
    if config.cluster.simulator_hosts and "ray" in (config.cluster.launcher, processes.launcher):
        raise ConfigError(
            f"{_env(config)}, devices beside the processes that act, and cluster.simulator_hosts is "
            f"{config.cluster.simulator_hosts}, which puts simulators on other nodes",
            "leave one of them out",
        )


def _check_variables(config: schema.Config, environment: Mapping[str, str]) -> None:
    for name in RENDER_VARIABLES:
        if name in environment:
            raise ConfigError(
                f"{_env(config)}, and the variable {name} is {environment[name]}, which every worker would follow",
                f"unset {name}, or leave env out of {PLACEMENT}",
            )


def _check_visible(
    config: schema.Config, processes: Group, table: PlacementTable, environment: Mapping[str, str]
) -> None:  # fmt: skip
    own, shown = processes.placed, visible_names(environment)
    if own is None or not shown:  # without GPUs a device is a place for a process
        return
    ranks = table.on(own.node)
    wanted = {rank.device for rank in ranks if config.runner.device != "cpu"}
    if _says_devices(config, table):
        wanted |= {device for rank in ranks for device in rank.renders}
    beyond = sorted(device for device in wanted if processes.seen((device,))[0] >= len(shown))
    if beyond:
        raise ConfigError(
            f"{PLACEMENT} names the device{'s' * (len(beyond) > 1)} {as_spans(beyond)} of {own.node}, and "
            f"{len(shown)} GPU{'s' * (len(shown) > 1)} can be seen there",
            f"name devices below {len(shown)}, or let CUDA_VISIBLE_DEVICES show more",
        )
