"""Divides env slots, workers, GPUs and open files among the processes. Needs no torch and no worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from embodied import schema
from embodied.errors import ConfigError
from embodied.lib.words import counted
from embodied.parallel import teams
from embodied.parallel.group import Group
from embodied.parallel.placement.launcher import NUMBER, start_command
from embodied.protocols import Batched
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.placement import devices, roles, table
from embodied.runtime.pool.file_limit import POOL, RANK, RESERVE, WORKER, OpenFiles
from embodied.runtime.pool.placement import Gpu, gpus_of_rank, visible_gpus, visible_names
from embodied.runtime.pool.pool import num_workers
from embodied.schema import only_evaluates as only_evaluates
from embodied.schema.keys.placement import placed


def folder_of_rank(folder: Path, processes: Group) -> Path:
    """Returns the folder for files that each process writes for itself."""
    return folder if processes.size == 1 else folder / f"rank-{processes.rank:02d}"


def slots_of(config: schema.Config, processes: Group) -> int:
    """Returns the env slots of a process, which training and evaluation share; those of the evaluation where
    nothing else runs episodes."""
    train, evaluation = config.env.train.total_num_envs, config.env.eval.total_num_envs
    return processes.of("rollout").divide(evaluation if only_evaluates(config) else max(train, evaluation))


def workers_of(side: ConfiguredEnv, config: schema.Config, slots: int, processes: Group) -> int:
    """Returns how many env workers of a process host ``slots``: by default one a GPU if the env is batched."""
    requested = requested_workers(config)
    if requested is None and isinstance(side.env, Batched):
        requested = max(1, len(render_gpus_of(config, processes)))
    return num_workers(requested, slots, processes.of("rollout").local_size)


def requested_workers(config: schema.Config) -> int | None:
    """Returns ``env.num_workers``; None: one a slot, as far as cores go, which preflight lowers for ``auto``."""
    return None if config.env.num_workers == "auto" else config.env.num_workers


class PoolSize(NamedTuple):
    """Env slots and workers of one pool of a process."""

    side: ConfiguredEnv
    slots: int
    workers: int


def pools_of(config: schema.Config, sides: Sides, processes: Group) -> list[PoolSize]:
    """Returns the pools that a process has open at most: two, if evaluations have workers of their own."""
    train, evaluation = sides
    if config.runner.task.records:  # an expert's episode has a worker for itself
        workers = num_workers(requested_workers(config), config.demos.episodes)
        return [PoolSize(train, workers, workers)]
    evaluates = config.runner.val_check_interval > 0
    if config.runner.task.supervised and not evaluates:
        return []
    if train.identity == evaluation.identity or only_evaluates(config):
        shown = [(evaluation, slots_of(config, processes))]
    else:
        among = sides if evaluates or config.runner.val_before_train else (train,)
        shown = [(side, processes.of("rollout").divide(side.config.total_num_envs)) for side in among]
    return [PoolSize(side, slots, workers_of(side, config, slots, processes)) for side, slots in shown]


def render_gpus_of(config: schema.Config, processes: Group) -> tuple[Gpu, ...]:
    """Returns the GPUs on which this process's workers render."""
    wanted = config.env.render_gpus
    if wanted is None and (renders := devices.renders_of(config, processes)) is not None:
        seen = visible_names()
        return tuple(seen[device] for device in renders if device < len(seen))
    return gpus_of_rank(visible_gpus() if wanted is None else wanted, processes.local_rank, processes.local_size)


def open_files(config: schema.Config, sides: Sides, processes: Group) -> OpenFiles:
    """Counts the files that a process of the run has open at most."""
    pools = pools_of(config, sides, processes)
    others = POOL * len(pools) + RANK * (processes.size - 1) + RESERVE
    return OpenFiles(sum(pool.workers for pool in pools), WORKER, others)


def check(config: schema.Config, processes: Group) -> None:
    """Refuses numbers of slots and groups that the processes cannot share equally."""
    hosts, learners = processes.of("rollout"), processes.of("train")
    if processes.size > 1 and config.runner.task.records:
        raise ConfigError(
            f"WORLD_SIZE is {processes.size}, and demonstrations are made by one process with many workers",
            " and ".join(_alone(config, processes)),
        )
    train, evaluation, algorithm = config.env.train.total_num_envs, config.env.eval.total_num_envs, config.algorithm
    counts = {"env.eval.total_num_envs": evaluation}
    if not only_evaluates(config):
        counts["env.train.total_num_envs"] = train
        groups = schema.episodes_per_iteration(config) // algorithm.group_size
        counts[f"the number of groups, {schema.episodes_told(config)} / group_size {algorithm.group_size},"] = groups
    if (size := config.actor.fsdp_config.fsdp_size) > 0 and learners.size > 1 and learners.size % size:
        raise ConfigError(
            f"actor.fsdp_config.fsdp_size {size} does not divide the {learners.size} processes of the run",
            "set it to a divisor (the processes of one machine), or to -1 for all of them",
        )
    if config.actor.offload_weight and config.rollout.backend == "native" and learners.size == 1:
        raise ConfigError(
            "actor.offload_weight is true in one process, which acts and learns with one copy of the policy: "
            "actor.fsdp_config.cpu_offload keeps the shards of several processes in host memory",
            f"leave actor.offload_weight out, or start several processes ({_number(config, processes)})",
        )
    if not (config.runner.only_eval or config.runner.task.records):
        teams.check(schema.context_parallel_size(config), learners)
    table.check(config, processes)
    devices.check(config, processes)
    if not isinstance(processes, table.Planned):
        _check_cluster(config.cluster, processes)
    roles.check(config, processes)
    for what, count in counts.items():
        if count % hosts.size:
            raise ConfigError(
                f"{what} is {count}, and the {hosts.size} processes {_which(processes)} cannot share it equally",
                f"make it a multiple of {hosts.size}, or start another number of processes "
                f"({_number(config, processes)})",
            )
    slots = slots_of(config, hosts)
    if hosts.size > 1 and (requested_workers(config) or 1) > slots:  # the schema refuses it with one process
        raise ConfigError(
            f"env.num_workers {config.env.num_workers} is more than the {slots} env slots of each process: some would "
            "be idle",
            f"set env.num_workers to {slots} or less, or raise env.train.total_num_envs and env.eval.total_num_envs",
        )


def _number(config: schema.Config, processes: Group) -> str:
    """Says what sets the number of processes."""
    places = placed(config.cluster)[1]
    by_place = any(name in places and places[name].ranks.numbers is not None for name in ("actor", "rollout"))
    devices = "other devices for actor and rollout in cluster.component_placement"
    if processes.launcher == "torchrun" and by_place:
        return f"{NUMBER['torchrun']}, and {devices}"
    return devices if by_place else NUMBER[processes.launcher]


def _alone(config: schema.Config, processes: Group) -> Iterator[str]:
    """Yields what leaves a command one process."""
    if config.cluster.component_placement is not None:
        yield "leave cluster.component_placement out"
    yield "start it without torchrun" if processes.launcher == "torchrun" else "leave cluster.launcher out"


def _which(processes: Group) -> str:
    return "that collect episodes" if processes.is_split else "of the run"


def _check_cluster(cluster: schema.ClusterConfig, processes: Group) -> None:
    """Refuses another number of machines or processes than there are."""
    here, machines = processes.local_size, processes.num_nodes
    asked = processes.launcher == "torchrun"  # the others start what is asked for
    each = None if cluster.component_placement is not None else cluster.num_gpus_per_node  # else some may be idle
    for key, wanted, there, what in (
        ("num_nodes", cluster.num_nodes, machines, ("machine", "machines")),
        ("num_gpus_per_node", each, here, ("process on each machine", "processes on each machine")),
    ):
        if asked and wanted not in (None, there):
            command = start_command("torchrun", cluster.num_nodes or machines, cluster.num_gpus_per_node or here)
            raise ConfigError(
                f"cluster.{key} is {wanted}, and the run has {counted(there, *what)}",
                f"start it with {command}, or leave cluster.{key} out"
                if cluster.component_placement is None
                else f"leave cluster.{key} out, or give actor and rollout devices of {counted(wanted, *what)} in "
                "cluster.component_placement",
            )


def check_queues(side: ConfiguredEnv, config: schema.Config, processes: Group) -> None:
    """Refuses queues shorter than the slots of a worker: each slot has one message in flight."""
    slots = slots_of(config, processes)
    workers = workers_of(side, config, slots, processes)
    most = -(-slots // workers)
    for key, queue in (("env", config.env.channel), ("rollout", config.rollout.channel)):
        if 0 < queue.queue_size < most:
            raise ConfigError(
                f"{key}.channel.queue_size {queue.queue_size} is less than the {most} slots of a worker "
                f"({slots} env slots on {workers} workers)",
                f"set {key}.channel.queue_size to {most} or more, or to 0; or raise env.num_workers",
            )


def check_stages(side: ConfiguredEnv, config: schema.Config, processes: Group) -> None:
    """Refuses stages that are not whole workers: the slots of a batch wait for each other."""
    slots, stages = slots_of(config, processes), config.rollout.pipeline_stage_num
    workers = workers_of(side, config, slots, processes)
    if isinstance(side.env, Batched) and stages > 1 and (workers % stages or slots % workers):
        raise ConfigError(
            f"rollout.pipeline_stage_num {stages} cannot divide {slots} env slots on {workers} workers: each worker "
            f"steps all of its slots together ({side.config.target})",
            f"set env.num_workers, env.train.total_num_envs and env.eval.total_num_envs to multiples of {stages}",
        )


def check_lanes(config: schema.Config, train: ConfiguredEnv, evaluation: ConfiguredEnv) -> None:
    """Refuses another batch in evaluations where they run on the workers of the training."""
    most = config.algorithm.val_rollout_batch_size_per_gpu
    if most is None or only_evaluates(config) or train.identity != evaluation.identity:
        return
    if most != config.rollout.policy_batch:
        raise ConfigError(
            f"algorithm.val_rollout_batch_size_per_gpu is {most}, and evaluations run on the workers of the training, "
            f"because env.eval is the same env: rollout.policy_batch is {config.rollout.policy_batch}",
            "leave it out, or set algorithm.rollout_batch_size_per_gpu to the same",
        )
