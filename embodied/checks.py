"""What can be wrong with a configuration, in order of cost: found without torch, a simulator or a worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied import schema
from embodied.compose import Composed
from embodied.data.demonstrations import Demonstration, Wanted, check_fit, read
from embodied.data.samples import hold_out
from embodied.distributed import World
from embodied.errors import CheckpointError, ConfigError
from embodied.protocols import Batched, Env
from embodied.run_folder import check_writable
from embodied.runtime.file_limit import POOL, RANK, RESERVE, WORKER, OpenFiles, allow
from embodied.runtime.pool import num_workers
from embodied.types import EnvSpec


@dataclass(frozen=True)
class EnvSide:
    """``env.train`` or ``env.eval`` with what its env offers. Equal ``identity``: the same workers will do."""

    name: str
    config: schema.EnvSideConfig
    kwargs: Mapping[str, Any]
    env: Env  # constructed to be asked, never reset
    spec: EnvSpec
    max_steps: int

    @property
    def reward(self) -> tuple[str, float, bool]:
        return self.config.reward_mode, self.config.reward_coef, self.config.use_rel_reward

    @property
    def identity(self) -> str:
        return json.dumps([self.config.target, self.reward, dict(self.kwargs)], sort_keys=True, default=str)


@dataclass(frozen=True)
class Demonstrated:
    """The demonstrations of a supervised run, found to fit its env."""

    train: Sequence[Demonstration]
    held_out: Sequence[Demonstration]


@dataclass(frozen=True)
class Checked:
    """A configuration whose envs were constructed (not built) and found to exist."""

    composed: Composed
    train: EnvSide
    eval: EnvSide
    world: World
    demonstrations: Demonstrated | None = None  # with task_type sft

    @property
    def config(self) -> schema.Config:
        return self.composed.config


def check(composed: Composed, world: World) -> Checked:
    """Everything that can be found without torch, a simulator or a worker. Raises :class:`EmbodiedError`."""
    config = composed.config
    _check_shares(config, world)
    train, evaluation = _side("train", config.env.train), _side("eval", config.env.eval)
    if train.spec.obs != evaluation.spec.obs or train.spec.action.field(1) != evaluation.spec.action.field(1):
        raise ConfigError(
            "env.train and env.eval offer different observations: "
            f"{dict(train.spec.obs)} and {dict(evaluation.spec.obs)}",
            "give both sides the same cameras and sizes (env.train.init_params, env.eval.init_params)",
        )
    for side in (train, evaluation):
        _check_queues(side, config, world)
        _check_stages(side, config, world)
    _check_penalty(config, train)
    if (ckpt := config.runner.ckpt_path) is not None and not (Path(ckpt) / "meta.json").is_file():
        raise CheckpointError(
            f"no checkpoint at {ckpt} (no meta.json)",
            "set runner.ckpt_path to the folder of one checkpoint, e.g. runs/NAME/checkpoints/000004",
        )
    check_writable(Path(config.runner.logger.log_path))
    for side in (train, evaluation):
        if side.config.video_cfg.save_video:
            check_writable(Path(side.config.video_cfg.video_base_dir))
    demonstrated = read_demonstrations(config, train) if config.runner.task_type == "sft" else None
    allow(open_files(config, train, evaluation, world))
    if world.local_rank == 0:  # what a machine offers is the same for all of its ranks
        for env in {side.identity: side.env for side in (train, evaluation)}.values():
            env.preflight()
    return Checked(composed, train, evaluation, world, demonstrated)


def read_demonstrations(config: schema.Config, side: EnvSide) -> Demonstrated:
    """Raises :class:`embodied.errors.DatasetError` or :class:`~embodied.errors.SpecMismatchError`."""
    data, spec = config.data, side.spec
    told = data.instruction or (spec.tasks[0] if len(spec.tasks) == 1 else None)
    wanted = Wanted(spec.cameras, data.camera_keys, data.state_keys, told)

    def episodes(paths: Sequence[str]) -> list[Demonstration]:
        found = [read(Path(path), wanted) for path in paths]
        for one in found:
            check_fit(one, spec, side.kwargs)
        return [episode for one in found for episode in one.episodes]

    given = episodes(data.train_data_paths)
    if data.val_data_paths:
        return Demonstrated(given, episodes(data.val_data_paths))
    return Demonstrated(*hold_out(given, data.test_size, config.runner.seed))


def _check_penalty(config: schema.Config, side: EnvSide) -> None:
    penalty = config.reward.overlong_penalty
    if penalty.enable and penalty.buffer_length > side.max_steps and not config.runner.only_eval:
        raise ConfigError(
            f"reward.overlong_penalty.buffer_length {penalty.buffer_length} is more than the {side.max_steps} control "
            "steps of an episode: every episode would be penalised",
            f"set reward.overlong_penalty.buffer_length to {side.max_steps} or less",
        )


def _check_shares(config: schema.Config, world: World) -> None:
    """Every rank hosts equally many slots and runs equally many groups."""
    if world.size > 1 and config.runner.task_type != "embodied":
        raise ConfigError(
            f"WORLD_SIZE is {world.size}, and only embodied.train and embodied.eval run in several processes",
            "start this one without torchrun",
        )
    train, evaluation, algorithm = config.env.train.total_num_envs, config.env.eval.total_num_envs, config.algorithm
    counts = {"env.eval.total_num_envs": evaluation}
    if not config.runner.only_eval:
        counts["env.train.total_num_envs"] = train
        groups = schema.episodes_per_iteration(config) // algorithm.group_size
        product = f"rollout_epoch {algorithm.rollout_epoch} · env.train.total_num_envs {train}"
        counts[f"the number of groups, {product} / group_size {algorithm.group_size},"] = groups
    if (size := config.actor.fsdp_config.fsdp_size) > 0 and world.size > 1 and world.size % size:
        raise ConfigError(
            f"actor.fsdp_config.fsdp_size {size} does not divide the {world.size} processes of the run",
            "set it to a divisor (the processes of one machine), or to -1 for all of them",
        )
    for what, count in counts.items():
        if count % world.size:
            raise ConfigError(
                f"{what} is {count}, and the {world.size} processes of the run cannot share it equally",
                f"make it a multiple of {world.size}, or start another number of processes (torchrun --nproc-per-node)",
            )
    slots = slots_of(config, world)
    if (config.env.num_workers or 1) > slots:
        raise ConfigError(
            f"env.num_workers {config.env.num_workers} is more than the {slots} env slots of each process: some would "
            "be idle",
            f"set env.num_workers to {slots} or less, or raise env.train.total_num_envs and env.eval.total_num_envs",
        )


def slots_of(config: schema.Config, world: World) -> int:
    """Env slots that a rank hosts if training and evaluation share them; those of the evaluation where it is all that
    runs episodes."""
    evaluation = config.env.eval.total_num_envs
    return world.divide(evaluation if _only_evaluates(config) else max(config.env.train.total_num_envs, evaluation))


def _only_evaluates(config: schema.Config) -> bool:
    """Whether evaluations are all that runs episodes."""
    return config.runner.only_eval or config.runner.task_type == "sft"


def open_files(config: schema.Config, train: EnvSide, evaluation: EnvSide, world: World) -> OpenFiles:
    """What a process of the run has open when it has most: with both sides' workers, if evaluations have their own."""
    if config.runner.task_type == "demos":
        workers = num_workers(config.env.num_workers, config.demos.episodes)
        return OpenFiles(workers, WORKER, POOL + RESERVE)
    if config.runner.task_type == "sft" and config.runner.val_check_interval <= 0:
        pools = []
    elif train.identity == evaluation.identity or _only_evaluates(config):
        pools = [workers_of(evaluation, config, slots_of(config, world), world)]
    else:
        sides = [train, evaluation] if config.runner.val_check_interval > 0 else [train]
        pools = [workers_of(s, config, world.divide(s.config.total_num_envs), world) for s in sides]
    others = POOL * len(pools) + RANK * (world.size - 1) + RESERVE
    return OpenFiles(sum(pools), WORKER, others)


def workers_of(side: EnvSide, config: schema.Config, slots: int, world: World) -> int:
    """Env workers of a rank that host ``slots``; of an env that hosts all slots of a worker by itself, one a GPU."""
    requested = config.env.num_workers
    if requested is None and isinstance(side.env, Batched):
        requested = max(1, len(render_gpus_of(config, world)))
    return num_workers(requested, slots, world.local_size)


def render_gpus_of(config: schema.Config, world: World) -> tuple[int, ...]:
    """Those that this process's workers render on."""
    from embodied.runtime.hosting import gpus_of_rank, visible_gpus

    wanted = config.env.render_gpus
    return gpus_of_rank(visible_gpus() if wanted is None else wanted, world.local_rank, world.local_size)


def _check_queues(side: EnvSide, config: schema.Config, world: World) -> None:
    """A slot has one message in flight, so a queue must hold as many as a worker has slots."""
    slots = slots_of(config, world)
    workers = workers_of(side, config, slots, world)
    most = -(-slots // workers)
    for key, queue in (("env", config.env.channel), ("rollout", config.rollout.channel)):
        if 0 < queue.queue_size < most:
            raise ConfigError(
                f"{key}.channel.queue_size {queue.queue_size} is less than the {most} slots of a worker "
                f"({slots} env slots on {workers} workers)",
                f"set {key}.channel.queue_size to {most} or more, or to 0; or raise env.num_workers",
            )


def _check_stages(side: EnvSide, config: schema.Config, world: World) -> None:
    """The slots of a batch wait for each other, so that stages are made of whole workers."""
    slots, stages = slots_of(config, world), config.rollout.pipeline_stage_num
    workers = workers_of(side, config, slots, world)
    if isinstance(side.env, Batched) and stages > 1 and (workers % stages or slots % workers):
        raise ConfigError(
            f"rollout.pipeline_stage_num {stages} cannot divide {slots} env slots on {workers} workers: each worker "
            f"steps all of its slots together ({side.config.target})",
            f"set env.num_workers, env.train.total_num_envs and env.eval.total_num_envs to multiples of {stages}",
        )


def _side(name: str, side: schema.EnvSideConfig) -> EnvSide:
    kwargs = schema.target_kwargs(side, f"env.{name}")
    env: Env = schema.load_target(side.target, f"env.{name}._target_")(**kwargs)
    spec = env.spec
    if not spec.tasks or min(spec.num_init_states) < 1:
        raise ConfigError(
            f"env.{name} offers {len(spec.tasks)} tasks with num_init_states {list(spec.num_init_states)}",
            f"choose tasks with at least one initial state: the keys of {side.target} under env.{name}",
        )
    return EnvSide(name, side, kwargs, env, spec, side.max_episode_steps or spec.max_episode_steps)
