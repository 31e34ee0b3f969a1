"""Configuration → parts that work together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embodied import schema
from embodied.errors import ConfigError
from embodied.observe.console import Console
from embodied.observe.timing import Sections
from embodied.parallel.group import World
from embodied.run.collector import Collector, Collectors, folder_of_rank
from embodied.run.folder import RunFolder
from embodied.run.preflight import Checked, EnvSide, render_gpus_of, slots_of
from embodied.types import ArraySpec, Sampling

if TYPE_CHECKING:  # torch takes seconds to import
    import torch

    from embodied.learn.checkpoint import Checkpoints
    from embodied.learn.cloning import Cloner
    from embodied.learn.trainer import Trainer
    from embodied.observe.trackers import Trackers
    from embodied.parallel.sharding import Parallel
    from embodied.protocols import Policy
    from embodied.runtime.fork_server import ForkServer


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
    from embodied.learn.mfu import peak_flops
    from embodied.learn.trainer import Trainer
    from embodied.parallel.sharding import check_same_weights, make_parallel

    config, world = checked.config, checked.world
    with ExitStack() as stack:
        folder = _open_folder(checked)
        stack.callback(folder.close)
        server = _fork_server(checked, folder.path, console)
        if server is not None:
            stack.callback(server.close)
        with console.progress("building the policy", brief=True):
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
        collectors = Collectors(checked, policy, device, numbers.fields, sections, folder.path, console, server)
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
            collectors.open,
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
    logs, gpus = folder_of_rank(folder / "logs", world), render_gpus_of(config, world)
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
