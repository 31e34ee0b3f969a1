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
    if own is None:
        return
    ranks = table.on(own.node)
    wanted = {rank.device for rank in ranks if config.runner.device != "cpu"}
    if _says_devices(config, table):
        wanted |= {device for rank in ranks for device in rank.renders}
    if not shown:
        _check_listed(config, table, max(wanted, default=0))
        return
    if wanted and processes.launcher == "ray":
        _check_lent(config, own.node, len(table.devices_of(own.node)), len(shown))
    places = {device: processes.seen((device,))[0] for device in sorted(wanted)}
    if beyond := [device for device, place in places.items() if place >= len(shown)]:
        raise ConfigError(
            f"{PLACEMENT} names the device{'s' * (len(beyond) > 1)} {as_spans(beyond)} of {own.node}, and "
            f"{len(shown)} GPU{'s' * (len(shown) > 1)} can be seen there",
            f"name devices below {len(shown)}, or let CUDA_VISIBLE_DEVICES show more",
        )
    for device, place in places.items():
        if place and str(shown[place]).startswith("MIG-"):
            raise ConfigError(
                f"{PLACEMENT} names the device {device} of {own.node}, which is {shown[place]}, and CUDA shows a "
                "process one part of a GPU, that at place 0",
                "name whole GPUs in CUDA_VISIBLE_DEVICES, or let the run have device 0 alone",
            )


def _check_listed(config: schema.Config, table: PlacementTable, last: int) -> None:
    """Refuses simulators on other GPUs where nothing lists GPUs, so that no worker could be told its own. On a machine
    without GPUs a device is a place for a process."""
    if config.runner.device == "cpu" or not table.renders_elsewhere:
        return
    import torch

    if torch.cuda.is_available():
        raise ConfigError(
            f"{_env(config)}, and neither CUDA_VISIBLE_DEVICES nor the driver's folder (/proc/driver/nvidia/gpus) "
            "lists the GPUs of this machine",
            f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(last + 1)))}, with nvidia-smi's numbers of its GPUs",
        )


def _check_lent(config: schema.Config, node: str, wanted: int, shown: int) -> None:
    """Refuses a node of Ray whose processes see other GPUs than those that the run has there."""
    if shown == wanted:
        return
    raise ConfigError(
        f"the run has {wanted} GPU{'s' * (wanted > 1)} of {node}, and its processes see {shown}: devices are counted "
        "among those that Ray lends",
        f"leave env out of {PLACEMENT}, or set runner.device=auto: with cpu Ray lends no GPU"
        if config.runner.device == "cpu"
        else "unset RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES on that node, and let ray start count its GPUs",
    )
