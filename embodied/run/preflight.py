"""Checks of a configuration before anything starts: they need no torch, no simulator and no worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied import schema
from embodied.data import text_reading
from embodied.data.demonstrations import Demonstration, Wanted, check_fit
from embodied.data.reading import read
from embodied.data.samples import hold_out
from embodied.data.text import Columns, Written
from embodied.errors import CheckpointError, ConfigError
from embodied.parallel.group import Group
from embodied.protocols import Batched, Env, SaysHowLong
from embodied.run.folder import check_writable
from embodied.runtime.file_limit import POOL, RANK, RESERVE, WORKER, OpenFiles, allow
from embodied.runtime.placement import gpus_of_rank, visible_gpus
from embodied.runtime.pool import num_workers
from embodied.schema.compose import Composed
from embodied.types import EnvSpec, TextAction


@dataclass(frozen=True)
class EnvSide:
    """``env.train`` or ``env.eval`` with what its env offers. Sides of equal ``identity`` can share their workers."""

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
    """The demonstrations of a supervised run, which fit its env: episodes, or answers to an env of texts."""

    train: Sequence[Demonstration] | Sequence[Written]
    held_out: Sequence[Demonstration] | Sequence[Written]


@dataclass(frozen=True)
class Checked:
    """A configuration whose envs were constructed (not built) and found to exist, and the processes of the run."""

    composed: Composed
    train: EnvSide
    eval: EnvSide
    processes: Group
    demonstrations: Demonstrated  # none unless task_type is sft

    @property
    def config(self) -> schema.Config:
        return self.composed.config


def check(composed: Composed, processes: Group) -> Checked:
    """Checks everything that needs no torch, simulator or worker. Raises :class:`EmbodiedError`."""
    config = composed.config
    _check_shares(config, processes)
    train, evaluation = _side("train", config.env.train), _side("eval", config.env.eval)
    if train.spec.obs != evaluation.spec.obs or train.spec.action.field(1) != evaluation.spec.action.field(1):
        raise ConfigError(
            "env.train and env.eval offer different observations: "
            f"{dict(train.spec.obs)} and {dict(evaluation.spec.obs)}",
            "give both sides the same cameras and sizes (env.train.init_params, env.eval.init_params)",
        )
    if not isinstance(train.spec.action, TextAction):
        _check_no_text(config)
    for side in (train, evaluation):
        _check_queues(side, config, processes)
        _check_deadline(side, config)
        _check_stages(side, config, processes)
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
    sft = config.runner.task_type == "sft"
    demonstrated = read_demonstrations(config, train) if sft else Demonstrated((), ())
    allow(open_files(config, train, evaluation, processes))
    if processes.local_rank == 0:  # what a machine offers is the same for all of its ranks
        for env in {side.identity: side.env for side in (train, evaluation)}.values():
            env.preflight()
    return Checked(composed, train, evaluation, processes, demonstrated)


def read_demonstrations(config: schema.Config, side: EnvSide) -> Demonstrated:
    """Raises :class:`embodied.errors.DatasetError` or :class:`~embodied.errors.SpecMismatchError`."""
    data, spec = config.data, side.spec
    if isinstance(spec.action, TextAction):
        return _read_texts(config)
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


def _read_texts(config: schema.Config) -> Demonstrated:
    data = config.data
    columns = Columns(data.prompt_key, data.response_key, data.messages_key, data.system_prompt)

    def texts(paths: Sequence[str]) -> list[Written]:
        return [one for path in paths for one in text_reading.read(path, columns, data.options)]

    given = texts(data.train_data_paths)
    if data.val_data_paths:
        return Demonstrated(given, texts(data.val_data_paths))
    return Demonstrated(*hold_out(given, data.test_size, config.runner.seed))


def _check_no_text(config: schema.Config) -> None:
    """Refuses what only texts have. Raises :class:`ConfigError` with the key."""
    runner, algorithm, usual = config.runner, config.algorithm, schema.SamplingConfig()
    asked = {
        "runner.task_type": runner.task_type == "math",
        "runner.enable_dynamic_batch_size": runner.enable_dynamic_batch_size,
        "runner.logger.log_val_generations": runner.logger.log_val_generations > 0,
    }
    for name in ("repetition_penalty", "max_new_tokens", "min_new_tokens", "stop", "ignore_eos"):
        for part in ("sampling_params", "val_sampling_params"):
            asked[f"algorithm.{part}.{name}"] = getattr(getattr(algorithm, part), name) != getattr(usual, name)
    if wrong := [key for key, given in asked.items() if given]:
        raise ConfigError(
            f"{', '.join(wrong)}: for texts alone, and {config.env.train.target} takes no text",
            f"choose an env of texts, e.g. env=math, or leave out {', '.join(wrong)}",
        )


def _check_penalty(config: schema.Config, side: EnvSide) -> None:
    penalty = config.reward.overlong_penalty
    if isinstance(side.spec.action, TextAction):
        return  # it counts tokens, and how many there may be the policy says
    if penalty.enable and penalty.buffer_length > side.max_steps and not config.runner.only_eval:
        raise ConfigError(
            f"reward.overlong_penalty.buffer_length {penalty.buffer_length} is more than the {side.max_steps} control "
            "steps of an episode: every episode would be penalised",
            f"set reward.overlong_penalty.buffer_length to {side.max_steps} or less",
        )


def _check_shares(config: schema.Config, processes: Group) -> None:
    """Refuses what cannot be shared: each process hosts equally many slots and runs equally many groups of episodes."""
    hosts, learners = processes.of("rollout"), processes.of("train")
    if processes.size > 1 and config.runner.task_type == "demos":
        raise ConfigError(
            f"WORLD_SIZE is {processes.size}, and demonstrations are made by one process with many workers",
            "start it without torchrun",
        )
    train, evaluation, algorithm = config.env.train.total_num_envs, config.env.eval.total_num_envs, config.algorithm
    counts = {"env.eval.total_num_envs": evaluation}
    if not only_evaluates(config):
        counts["env.train.total_num_envs"] = train
        groups = schema.episodes_per_iteration(config) // algorithm.group_size
        product = f"rollout_epoch {algorithm.rollout_epoch} · env.train.total_num_envs {train}"
        counts[f"the number of groups, {product} / group_size {algorithm.group_size},"] = groups
    if (size := config.actor.fsdp_config.fsdp_size) > 0 and learners.size > 1 and learners.size % size:
        raise ConfigError(
            f"actor.fsdp_config.fsdp_size {size} does not divide the {learners.size} processes of the run",
            "set it to a divisor (the processes of one machine), or to -1 for all of them",
        )
    for what, count in counts.items():
        if count % hosts.size:
            raise ConfigError(
                f"{what} is {count}, and the {hosts.size} processes of the run cannot share it equally",
                f"make it a multiple of {hosts.size}, or start another number of processes (torchrun --nproc-per-node)",
            )
    slots = slots_of(config, hosts)
    if (config.env.num_workers or 1) > slots:
        raise ConfigError(
            f"env.num_workers {config.env.num_workers} is more than the {slots} env slots of each process: some would "
            "be idle",
            f"set env.num_workers to {slots} or less, or raise env.train.total_num_envs and env.eval.total_num_envs",
        )


def slots_of(config: schema.Config, processes: Group) -> int:
    """Returns how many env slots a process hosts if training and evaluation share them; those of the evaluation where
    nothing else runs episodes."""
    train, evaluation = config.env.train.total_num_envs, config.env.eval.total_num_envs
    return processes.of("rollout").divide(evaluation if only_evaluates(config) else max(train, evaluation))


def only_evaluates(config: schema.Config) -> bool:
    """Whether evaluations are all that runs episodes."""
    return config.runner.only_eval or config.runner.task_type == "sft"


def open_files(config: schema.Config, train: EnvSide, evaluation: EnvSide, processes: Group) -> OpenFiles:
    """Counts the files that a process of the run has open at most: with both sides' workers, if evaluations have their
    own."""
    if config.runner.task_type == "demos":
        workers = num_workers(config.env.num_workers, config.demos.episodes)
        return OpenFiles(workers, WORKER, POOL + RESERVE)
    if config.runner.task_type == "sft" and config.runner.val_check_interval <= 0:
        pools = []
    elif train.identity == evaluation.identity or only_evaluates(config):
        pools = [workers_of(evaluation, config, slots_of(config, processes), processes)]
    else:
        evaluates = config.runner.val_check_interval > 0 or config.runner.val_before_train
        sides = [train, evaluation] if evaluates else [train]
        pools = [workers_of(s, config, processes.divide(s.config.total_num_envs), processes) for s in sides]
    others = POOL * len(pools) + RANK * (processes.size - 1) + RESERVE
    return OpenFiles(sum(pools), WORKER, others)


def workers_of(side: EnvSide, config: schema.Config, slots: int, processes: Group) -> int:
    """Returns how many env workers of a process host ``slots``: one a GPU if the env hosts all slots of a worker."""
    requested = config.env.num_workers
    if requested is None and isinstance(side.env, Batched):
        requested = max(1, len(render_gpus_of(config, processes)))
    return num_workers(requested, slots, processes.local_size)


def render_gpus_of(config: schema.Config, processes: Group) -> tuple[int, ...]:
    """Returns the GPUs on which this process's workers render."""
    wanted = config.env.render_gpus
    return gpus_of_rank(visible_gpus() if wanted is None else wanted, processes.local_rank, processes.local_size)


def _check_queues(side: EnvSide, config: schema.Config, processes: Group) -> None:
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


def _check_deadline(side: EnvSide, config: schema.Config) -> None:
    """Refuses a deadline that a slow step would miss: its worker would be taken for one that hangs."""
    if isinstance(side.env, SaysHowLong) and side.env.longest_step_s >= config.env.step_timeout_s:
        raise ConfigError(
            f"a step of env.{side.name} may take {side.env.longest_step_s:.0f} s (its verifiers), and "
            f"env.step_timeout_s is {config.env.step_timeout_s:g}",
            f"set env.step_timeout_s={2 * side.env.longest_step_s:.0f}, or shorten the verifiers' time limits",
        )


def _check_stages(side: EnvSide, config: schema.Config, processes: Group) -> None:
    """Refuses stages that are not whole workers: the slots of a batch wait for each other."""
    slots, stages = slots_of(config, processes), config.rollout.pipeline_stage_num
    workers = workers_of(side, config, slots, processes)
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
    steps = side.max_episode_steps or spec.max_episode_steps
    if isinstance(spec.action, TextAction):
        steps = min(steps, spec.max_episode_steps)  # sizes for robots, e.g. of experiment=laptop, allow more
    return EnvSide(name, side, kwargs, env, spec, steps)
