"""Decides whether a command starts ranks (``cluster.launcher``) or is one, and describes the job to the launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.parallel.placement.launcher import launched_by, start_command

if TYPE_CHECKING:
    from embodied.cluster.launch import Job
    from embodied.cluster.plan import Placing
    from embodied.schema import ClusterConfig, Config
    from embodied.schema.compose.compose import Composed


def module_of(config_name: str) -> str:
    """Returns the module of a command.

    >>> module_of("demos"), module_of("eval")
    ('embodied.tools.demos', 'embodied.eval')
    """
    return "embodied.tools.demos" if config_name == "demos" else f"embodied.{config_name}"


def launches(config: Config, environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process starts the ranks of its run, and is none of them.

    Raises:
        ConfigError: ``cluster.launcher`` names another launcher than has started this process.
    """
    wanted, by = config.cluster.launcher, launched_by(environment)
    if (wanted is not None and (by or wanted) != wanted) or (wanted == "torchrun" and by is None):
        there = "no launcher" if by is None else by
        each, nodes = config.cluster.num_gpus_per_node or 1, config.cluster.num_nodes or 1
        raise ConfigError(
            f"cluster.launcher is {wanted}, and {there} has started this process",
            f"start it with {start_command(wanted, nodes, each)}, or leave cluster.launcher out",
        )
    if by is not None or wanted is None or config.runner.dry_run:
        return False
    return wanted == "ray" or _local_ranks(config) > 1


def _local_ranks(config: Config) -> int:
    """Returns how many processes ``cluster.launcher=local`` starts: devices that simulators have to themselves have
    none."""
    from embodied.run.placement.table import local_table

    table = local_table(config)
    return (config.cluster.num_gpus_per_node or 1) if table is None else len(table.ranks)


def job_of(composed: Composed, argv: Sequence[str], config_name: str) -> Job:
    """Returns the job of a command that launches.

    Raises:
        ConfigError: this machine has not what its ranks take; they cannot share slots or groups.
    """
    from embodied.cluster.launch import Job
    from embodied.run.build import shares
    from embodied.run.placement import roles, table

    config, cluster = composed.config, composed.config.cluster
    local = cluster.launcher == "local"

    def refuse_size(size: int) -> None:
        each = cluster.num_gpus_per_node or size
        ranks = Group(0, size, 0, size if size % each else each, launcher=cluster.launcher or "ray")
        if cluster.component_placement is not None:
            own = table.local_table(config) if local else None
            ranks = ranks.with_table(own or table.table_of_size(config, size, each))
        shares.check(config, roles.placed(config, ranks))

    def divides(size: int) -> bool:
        try:
            refuse_size(size)
        except ConfigError:
            return False
        return True

    each = cluster.num_gpus_per_node
    if local:
        each = _local_ranks(config)
        _check_local(cluster, config.runner.device, each)
    placing = None if local else _placing(config)
    if placing is None and each is not None and (local or cluster.num_nodes is not None):
        refuse_size(each * (cluster.num_nodes or 1))
    return Job(
        "local" if local else "ray", ["-m", module_of(config_name), *argv], Path(config.runner.logger.log_path),
        "CPU" if config.runner.device == "cpu" else "auto", cluster.num_nodes, each,
        cluster.address, cluster.init_timeout_s or cluster.timeout_s, cluster.agent_timeout_s,
        config.runner.stop_timeout_s, cluster.max_restarts, divides, lambda text: print(text, flush=True),
        placing,
    )  # fmt: skip


def _placing(config: Config) -> Placing | None:
    """Returns what the keys say of places; None = nothing."""
    cluster = config.cluster.model_dump(include={"component_placement", "node_groups"})
    if not any(cluster.values()):
        return None
    slots = max(config.env.train.total_num_envs, config.env.eval.total_num_envs)
    return {
        "component_placement": cluster["component_placement"],
        "node_groups": cluster["node_groups"],
        "slots": slots,
    }


def _check_local(cluster: ClusterConfig, device: str, ranks: int) -> None:
    from embodied.runtime.pool.placement import visible_names

    gpus = () if device == "cpu" else visible_names()
    there, what = (len(gpus), "GPUs") if gpus else (len(os.sched_getaffinity(0)), "CPU cores")
    if (cluster.num_nodes or 1) > 1:
        raise ConfigError(
            f"cluster.launcher is local, and cluster.num_nodes {cluster.num_nodes}", "set cluster.launcher=ray"
        )
    said = cluster.num_gpus_per_node
    if said is not None and (ranks if cluster.component_placement is not None and not gpus else said) > there:
        raise ConfigError(
            f"cluster.num_gpus_per_node is {said}, and this machine has {there} {what}", f"set it to {there} or less"
        )
    if ranks > there:
        raise ConfigError(
            f"cluster.component_placement is a place for {ranks} processes, and this machine has {there} {what}",
            f"name {there} devices or less for actor and rollout",
        )
