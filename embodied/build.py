"""Configuration → parts that work together. What can be wrong is found in order of cost, before any worker starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied import schema
from embodied.compose import Composed
from embodied.data.demonstrations import Demonstration, Wanted, check_fit, read
from embodied.data.samples import hold_out
from embodied.distributed import World
from embodied.errors import CheckpointError, ConfigError
from embodied.observe.console import Console
from embodied.observe.timing import Sections
from embodied.protocols import Batched, Env
from embodied.run_folder import RunFolder, check_writable
from embodied.types import ArraySpec, EnvSpec, Sampling, WorkerFacts

if TYPE_CHECKING:  # torch takes seconds to import, and most mistakes are found without it
    import torch

    from embodied.learn.checkpoint import Checkpoints
    from embodied.learn.cloning import Cloner
    from embodied.learn.parallel import Parallel
    from embodied.learn.trainer import Trainer
    from embodied.observe.trackers import Trackers
    from embodied.protocols import Policy
    from embodied.runtime.fork_server import ForkServer
    from embodied.runtime.pool import Pool
    from embodied.runtime.rollout import Rollout
    from embodied.runtime.slab import Slab

MAX_POLICY_BATCH = (
    8  # rows of a policy call unless rollout.policy_batch says otherwise; a 7B model saturates a GPU there
)


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
    if train.spec.obs != evaluation.spec.obs or train.spec.action_dim != evaluation.spec.action_dim:
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
    counts = {"env.train.total_num_envs": train, "env.eval.total_num_envs": evaluation}
    if not config.runner.only_eval:
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
    """Env slots that a rank hosts if training and evaluation share them."""
    return world.divide(max(config.env.train.total_num_envs, config.env.eval.total_num_envs))


def workers_of(side: EnvSide, config: schema.Config, slots: int, world: World) -> int:
    """Env workers of a rank that host ``slots``; of an env that hosts all slots of a worker by itself, one a GPU."""
    from embodied.runtime.pool import num_workers

    requested = config.env.num_workers
    if requested is None and isinstance(side.env, Batched):
        requested = max(1, len(_render_gpus(config, world)))
    return num_workers(requested, slots, world.local_size)


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


def sampling(config: schema.SamplingConfig) -> Sampling:
    return Sampling(config.do_sample, config.temperature, config.top_k, config.top_p)


def reproducible_arithmetic() -> None:
    """Ask MKL, before its first call, for one code path: else a row of a product depends on its place in a small batch.

    With it, which slots are ready together changes no bit of a record, as ``runner.deterministic`` promises. On the
    small OpenVLA-OFT the cost is within the noise at 2 rows and below a tenth of the CPU time at 8.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")


def build_policy(checked: Checked) -> tuple[Policy, torch.device]:
    """The policy on its device, found to fit both sides' envs; each rollout binds it to its own."""
    import torch

    from embodied.learn.freeze import freeze

    runner, model = checked.config.runner, checked.config.actor.model
    if runner.deterministic:
        reproducible_arithmetic()
    torch.set_num_threads(runner.num_threads)
    device = _device(runner.device, checked.world)
    _seed_generators(runner.seed)
    policy = schema.load_target(model.target, "actor.model._target_")(**schema.target_kwargs(model, "actor.model"))
    freeze(policy, model.freeze_patterns)
    policy.to(device)
    for side in (checked.eval, checked.train):
        policy.bind(side.spec)
    if runner.ckpt_path is not None:
        from embodied.learn.checkpoint import load

        load(Path(runner.ckpt_path), policy)
    return policy, device


def _seed_generators(seed: int) -> None:
    """Whatever draws without a generator of its own. Checkpoints keep the state of the three."""
    import random

    import numpy as np
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _device(name: str, world: World) -> torch.device:
    """The device of this rank: with several on a machine, each has the GPU of its number."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"runner.device is {name} and torch {torch.__version__} finds no GPU",
            "set runner.device=auto, or install a CUDA build of torch",
        )
    if name == "cpu" or world.size == 1:
        return torch.device(name)
    if name != "cuda" or world.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"runner.device is {name}, and {world.local_size} processes on this machine of {torch.cuda.device_count()} "
            "GPUs need one each",
            "set runner.device=cuda, and torchrun --nproc-per-node to the number of GPUs",
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True)
class Sizes:
    """The derived numbers of a run: what ``runner.dry_run`` prints and the slab is made from."""

    episodes: int  # of an iteration, over all ranks
    groups: int
    rows: int  # of a rank's slab: its records (with gae, final observations) if none ends early, or two a slot
    optimizer_steps: int  # of an iteration, at most
    fields: Mapping[str, ArraySpec]  # of a record


def sizes(checked: Checked, policy: Policy) -> Sizes:
    from embodied.runtime.slab import runtime_fields

    config, spec = checked.config, policy.spec
    episodes = schema.episodes_per_iteration(config)
    records = episodes * -(-checked.train.max_steps // spec.num_action_chunks)
    finals = episodes if config.algorithm.adv_type == "gae" else 0
    slots = slots_of(config, checked.world)
    fields = {**checked.train.spec.obs, **spec.decision, **runtime_fields(spec.num_action_chunks)}
    steps = -(-records // config.actor.global_batch_size) * config.algorithm.update_epoch
    own = checked.world.divide(records + finals)
    rows = 2 * slots if config.runner.only_eval or checked.demonstrations else max(own, 2 * slots)
    return Sizes(episodes, episodes // config.algorithm.group_size, rows, steps, fields)


@dataclass
class Collector:
    """A pool of workers with the rollout that drives it."""

    identity: str
    pool: Pool
    slab: Slab
    rollout: Rollout

    def close(self) -> None:
        self.pool.close()
        self.slab.close()


@dataclass
class Parts:
    """Everything that a run is made of; ``close`` ends the workers and releases the folder, whatever else fails."""

    checked: Checked
    policy: Policy
    device: torch.device
    sizes: Sizes
    folder: RunFolder
    checkpoints: Checkpoints
    trainer: Trainer | Cloner
    parallel: Parallel
    console: Console
    sections: Sections
    open_collector: Callable[[EnvSide, int], Collector]
    stack: ExitStack
    trackers: Trackers | None = None  # made when it is known from which iteration the run goes on; rank 0 has them

    @property
    def config(self) -> schema.Config:
        return self.checked.config

    @property
    def world(self) -> World:
        return self.checked.world

    def close(self) -> None:
        self.stack.close()


def build(checked: Checked, console: Console) -> Parts:
    """Policy, trainer, run folder; workers start with the first :class:`Collector`."""
    from embodied.learn.checkpoint import Checkpoints
    from embodied.learn.parallel import check_same_weights, make_parallel
    from embodied.learn.peak import peak_flops
    from embodied.learn.trainer import Trainer

    config, world = checked.config, checked.world
    with ExitStack() as stack:
        folder = _open_folder(checked)
        stack.callback(folder.close)
        server = _fork_server(checked, folder.path, console)
        if server is not None:
            stack.callback(server.close)
        policy, device = build_policy(checked)
        stack.enter_context(world.connected(device.type == "cuda", config.cluster.timeout_s))
        check_same_weights(policy, world)
        parallel = make_parallel(policy, config.actor.fsdp_config, config.algorithm, world, device)
        for line in parallel.notes:
            console.say(line)
        numbers, sections = sizes(checked, policy), Sections()
        trainer = _cloner(checked, policy, device) or Trainer(
            policy=policy, env=checked.train.spec, actor=config.actor, algorithm=config.algorithm,
            sampling=sampling(config.algorithm.sampling_params), device=device, seed=config.runner.seed,
            max_steps=checked.train.max_steps, max_bad_updates=config.runner.max_bad_updates, parallel=parallel,
            reward=config.reward, iterations=config.runner.max_epochs,
            peak_flops=peak_flops(config.runner.peak_tflops, policy, device),
        )  # fmt: skip
        kept = config.runner.checkpoint
        checkpoints = Checkpoints(folder.path / "checkpoints", kept.max_keep, kept.async_save)
        stack.callback(checkpoints.close, console.say)
        said: set[str] = set()

        def open_collector(side: EnvSide, rows: int) -> Collector:
            return _collector(
                side, rows, checked, policy, device, numbers, sections, folder.path, console, said, server
            )

        return Parts(
            checked,
            policy,
            device,
            numbers,
            folder,
            checkpoints,
            trainer,
            parallel,
            console,
            sections,
            open_collector,
            stack.pop_all(),
        )


def _fork_server(checked: Checked, folder: Path, console: Console) -> ForkServer | None:
    """Started before the policy is built: the simulator is imported meanwhile."""
    from embodied.runtime.fork_server import ForkServer

    config, world = checked.config, checked.world
    if config.env.start_method == "spawn" or config.runner.dry_run:
        return None
    if config.runner.deterministic:
        reproducible_arithmetic()
    envs = {side.config.target: side.kwargs for side in (checked.eval, checked.train)}
    logs, gpus = _of_rank(folder / "logs", world), _render_gpus(config, world)
    return ForkServer([*envs.items()], logs, config.env.init_timeout_s, gpus, config.env.python, console.say)


def _cloner(checked: Checked, policy: Policy, device: torch.device) -> Cloner | None:
    """What trains in the place of the trainer with task_type sft."""
    from embodied.learn.cloning import Cloner

    found = checked.demonstrations
    if found is None:
        return None
    return Cloner(policy, checked.train.spec, checked.config, found.train, found.held_out, device)


def _open_folder(checked: Checked) -> RunFolder:
    """Rank 0 owns the run's folder; the others know where it is."""
    runner = checked.config.runner
    if not checked.world.is_main:
        return RunFolder(Path(runner.logger.log_path), None)
    open_folder = RunFolder.look if runner.dry_run else RunFolder.open
    return open_folder(Path(runner.logger.log_path), checked.composed.resolved)


def _collector(
    side: EnvSide, rows: int, checked: Checked, policy: Policy, device: torch.device, numbers: Sizes,
    sections: Sections, folder: Path, console: Console, said: set[str], server: ForkServer | None,
) -> Collector:  # fmt: skip
    from embodied.runtime.pool import Pool
    from embodied.runtime.rollout import Rollout
    from embodied.runtime.slab import Slab

    config, world = checked.config, checked.world
    shared = checked.train.identity == checked.eval.identity
    logs = _of_rank(folder / "logs", world)
    if not shared and side.name != "train":
        logs /= side.name
    slots = slots_of(config, world) if shared else world.divide(side.config.total_num_envs)
    slab = Slab.create(numbers.fields, rows, f"{config.env.channel.name}.slab")
    try:
        pool = Pool(replace(pool_config(side, slots, config, logs, world), server=server), slab, console.say)
    except BaseException:
        slab.close()
        raise
    _say_once([*_renderers(pool.facts), *_eager_note(config, device)], console, said)

    def probe_once(obs: Mapping[str, torch.Tensor]) -> None:
        if "probe" not in said:
            said.add("probe")
            seen = first_observations(obs, device, world)
            _say_once(policy.probe(seen) if seen else (), console, said)

    rollout = Rollout(
        pool, slab, policy, side.spec, _schedule(config, slots), device, sections, probe_once,
        trace=_of_rank(folder / "trace", world) if config.rollout.trace else None,
    )  # fmt: skip
    return Collector(side.identity, pool, slab, rollout)


def _of_rank(folder: Path, world: World) -> Path:
    """Where this process leaves what each rank has of its own."""
    return folder if world.size == 1 else folder / f"rank-{world.rank:02d}"


FIRST_OBSERVATIONS = "first observations"


def first_observations(
    obs: Mapping[str, torch.Tensor], device: torch.device, world: World
) -> Mapping[str, torch.Tensor] | None:
    """Those of rank 0, so that all ranks conclude the same from them; None if it stopped before it had any.

    Not a meeting: a rank that a signal stops never comes here.
    """
    if world.size == 1:
        return obs
    if world.is_main:
        world.post(FIRST_OBSERVATIONS, {name: tensor.cpu().numpy() for name, tensor in obs.items()})
        return obs
    import torch

    seen = world.read(FIRST_OBSERVATIONS)
    return seen and {name: torch.from_numpy(array).to(device) for name, array in seen.items()}


def pool_config(side: EnvSide, slots: int, config: schema.Config, logs: Path, world: World) -> Any:
    from embodied.runtime.pool import Deadlines, PoolConfig
    from embodied.runtime.reward import ShapedReward

    env, commands, completions = config.env, config.rollout.channel, config.env.channel
    return PoolConfig(
        num_slots=slots, num_workers=workers_of(side, config, slots, world), env_target=side.config.target,
        env_kwargs=side.kwargs, reward=ShapedReward(*side.reward),
        deadlines=Deadlines(env.init_timeout_s, env.reset_timeout_s, env.step_timeout_s), log_dir=logs,
        info_on_video=side.config.video_cfg.info_on_video,
        env_channel=(completions.name, completions.queue_name, completions.queue_size),
        rollout_channel=(commands.name, commands.queue_name, commands.queue_size),
        max_restarts=env.max_worker_restarts, python=env.python, pin=env.pin_workers,
        gpus=_render_gpus(config, world), rank=world.local_rank, ranks=world.local_size,
        batch=isinstance(side.env, Batched),
    )  # fmt: skip


def _render_gpus(config: schema.Config, world: World) -> tuple[int, ...]:
    """Those that this process's workers render on."""
    from embodied.runtime.hosting import gpus_of_rank, visible_gpus

    wanted = config.env.render_gpus
    return gpus_of_rank(visible_gpus() if wanted is None else wanted, world.local_rank, world.local_size)


def _schedule(config: schema.Config, slots: int) -> Any:
    from embodied.runtime.rollout import Schedule

    rollout = config.rollout
    return Schedule(
        lockstep=rollout.schedule == "lockstep",
        min_batch=rollout.min_batch or max(1, slots // 8),
        policy_batch=_policy_batch(rollout, slots),
        fixed_shape=config.runner.deterministic or not rollout.enforce_eager,
        enforce_eager=rollout.enforce_eager,
        stages=rollout.pipeline_stage_num,
        max_wait_s=float("inf") if rollout.max_wait_ms is None else rollout.max_wait_ms / 1000,
    )


def policy_batch(config: schema.Config, world: World) -> int:
    """Rows of one policy call on a rank."""
    return _policy_batch(config.rollout, slots_of(config, world))


def _policy_batch(rollout: schema.RolloutConfig, slots: int) -> int:
    return rollout.policy_batch or min(slots, MAX_POLICY_BATCH)


def _renderers(facts: Iterable[WorkerFacts]) -> Iterator[str]:
    """What the workers found: renderer with its reason, versions, warnings."""
    for fact in facts:
        yield f"renderer: {fact.renderer} ({fact.reason})"
        yield from (f"{name}: {text}" for name, text in fact.extra.items())


def _eager_note(config: schema.Config, device: torch.device) -> list[str]:
    if config.rollout.enforce_eager or device.type == "cuda":
        return []
    return [f"rollout.enforce_eager=false changes nothing on {device}: CUDA graphs need a GPU"]


def _say_once(texts: Iterable[str], console: Console, said: set[str]) -> None:
    for text in texts:
        if text not in said:
            said.add(text)
            console.say(text)
