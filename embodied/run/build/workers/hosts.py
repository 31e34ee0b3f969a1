"""Opens env slots: workers of this process, or simulator hosts (``cluster.simulator_hosts``, or nodes that
``cluster.component_placement`` gives env). Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from embodied import schema
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.placement.launcher import NODE, launched_by
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.shares import slots_of
from embodied.run.build.workers.pools import forks
from embodied.run.placement import table
from embodied.runtime.pool.pool import Pool, PoolConfig
from embodied.runtime.ports import EnvPort
from embodied.runtime.remote.hosts import HostsConfig, RemotePool
from embodied.runtime.remote.local import LocalStarter
from embodied.runtime.remote.starter import HostStarter
from embodied.runtime.slab import Slab


@dataclass(frozen=True)
class Hosts:
    """The simulator hosts of a process, and who starts them.

    Args:
        elsewhere: they run on other machines, whose cores and GPUs are theirs alone. Else they share those of this one.
        shares: of the slots, one a host (:class:`HostsConfig`).
    """

    starter: HostStarter
    count: int
    elsewhere: bool = False
    shares: tuple[int, ...] = ()


def hosts_of(config: schema.Config, processes: Group) -> Hosts | None:
    """Returns the hosts of this process that the configuration asks for; None = the workers are those of the process
    itself.

    Args:
        processes: all of the run, or those of a role.
    """
    on = table.hosts_of(config, processes)
    if (count := len(on) or config.cluster.simulator_hosts) == 0:
        return None
    start_s, shares = config.env.init_timeout_s, tuple(host.slots for host in on)
    if launched_by(os.environ) != "ray":
        return Hosts(LocalStarter(start_s), count, shares=shares)
    from embodied.cluster.sim_host import RayStarter

    starter = RayStarter(
        os.environ["RAY_ADDRESS"], os.environ[NODE], start_s, [host.node for host in on], table.software_of(config)
    )
    return Hosts(starter, count, elsewhere=True, shares=shares)


def open_port(
    config: schema.Config, side: ConfiguredEnv, pool: PoolConfig, slab: Slab, hosts: Hosts | None,
    say: Callable[[str], None],
) -> EnvPort:  # fmt: skip
    """Opens env slots over a slab.

    Args:
        pool: settings of the workers as they would be without hosts.
    """
    if hosts is None:
        return Pool(pool, slab, say)
    if hosts.elsewhere:
        own = config.env.num_workers
        pool = replace(pool, num_workers=own if isinstance(own, int) else 0, rank=0, ranks=1)
    gpus = pool.gpus if not hosts.elsewhere else None if config.env.render_gpus is None else (*config.env.render_gpus,)
    remote = HostsConfig(
        replace(pool, server=None), hosts.count if hosts.shares else min(hosts.count, pool.num_slots),
        tuple(side.spec.obs),
        config.cluster.node_timeout_s, gpus, forks(config.env, side.env), hosts.elsewhere,
        hosts.shares,
    )  # fmt: skip
    return RemotePool(remote, slab, hosts.starter, say)


def check_hosts(side: ConfiguredEnv, config: schema.Config, processes: Group) -> None:
    """Refuses simulator hosts for what they cannot do."""
    hosts, slots = config.cluster.simulator_hosts, slots_of(config, processes)
    placed = table.most_hosts(config, processes)
    if not hosts and not placed:
        return
    key = "cluster.component_placement's env" if placed else "cluster.simulator_hosts"
    said = f"{key} gives env nodes of its own" if placed else f"{key} is {hosts}"
    if config.runner.task.records:
        raise ConfigError(
            f"{said}, and demonstrations are recorded by workers of the process itself", f"leave {key} out"
        )
    if not side.spec.retry_safe:
        raise ConfigError(
            f"{said}, and {side.config.target} has a robot (EnvSpec.retry_safe is False), which only workers of the "
            "process itself can stop safely",
            f"leave {key} out",
        )
    if side.spec.interventions:
        raise ConfigError(
            f"{said}, and a human may override the actions of env.{side.name} (EnvSpec.interventions), which a node "
            "does not tell",
            f"leave {key} out",
        )
    if placed and hosts not in (0, placed):
        raise ConfigError(
            f"cluster.simulator_hosts is {hosts}, and cluster.component_placement gives a process {placed} of them",
            "leave cluster.simulator_hosts out",
        )
    if hosts > slots:
        raise ConfigError(
            f"cluster.simulator_hosts is {hosts}, and there are {slots} env slots: some hosts would be idle",
            f"set cluster.simulator_hosts to {slots} or less, or raise env.train.total_num_envs and "
            "env.eval.total_num_envs",
        )
