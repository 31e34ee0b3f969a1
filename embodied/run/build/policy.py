"""Builds the policy and the numbers of a run from its configuration."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from embodied import schema
from embodied.errors import ConfigError
from embodied.learn.checkpoint.loading import load
from embodied.learn.origin import Origin, Simulator, seed_generators
from embodied.learn.step.device import device_named
from embodied.learn.step.freeze import freeze
from embodied.observe.terminal.console import Console
from embodied.parallel.acting_replica import make_acting_replica
from embodied.parallel.group import Group
from embodied.parallel.same_weights import check_same_weights
from embodied.parallel.sharding import Parallel, make_parallel, plan_parallel
from embodied.protocols import HasProgressFeatures, Policy
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.shares import only_evaluates, slots_of
from embodied.run.folder import launches
from embodied.run.folder.folder import RunFolder
from embodied.runtime.slab import feature_fields, info_fields, intervention_fields, runtime_fields
from embodied.schema.compose.compose import Composed
from embodied.types import ArraySpec, Noise, PolicySpec, Sampling


@dataclass(frozen=True)
class Model:
    """The policy on its device, and how the processes share it."""

    policy: Policy
    device: torch.device
    sharding: Parallel


@contextmanager
def open_folder(composed: Composed, processes: Group) -> Iterator[RunFolder]:
    """Opens the run's folder until the block ends. Rank 0 owns it, and a dry run writes nothing.

    Raises:
        RunFolderError: it cannot be written, is in use, or holds a run of another configuration.
    """
    runner, resolved = composed.config.runner, composed.resolved
    path = Path(runner.logger.log_path)
    if not processes.is_main:
        folder = RunFolder(path, None)
    else:
        folder = RunFolder.look(path, resolved) if runner.dry_run else RunFolder.open(path, resolved)
    with closing(folder):
        if processes.is_main and not runner.dry_run:
            launches.record(path, composed.command, processes.size)
            if (record := composed.record) is not None:
                record.write(path)
            if (origins := composed.origins) is not None:
                origins.write(path)
        yield folder


@contextmanager
def open_model(
    config: schema.Config, processes: Group, sides: Sides, console: Console, policy: Policy | None = None
) -> Iterator[Model]:
    """Builds the policy, connects the processes of the run, and shares the policy among them, until the block ends.

    Args:
        policy: one that was built for counting alone; None = it is built here. Processes are then not connected.

    Raises:
        ConfigError: an evaluation would repeat equal episodes, or the policy does not draw as the keys say.
        RankError: a process did not come.
        RanksDifferError: the processes hold different weights.
    """
    counted = policy
    if policy is None:
        with console.progress("building the policy", brief=True):
            policy, device = build_policy(config, processes, sides, console.say)
    else:
        device = device_of(config.runner, processes)
    _check_repeats(config.algorithm, policy.spec.noise)
    _check_sampling(config, policy.spec)
    cluster, connects = config.cluster, "nccl" if device.type == "cuda" else "gloo"
    if processes.size > 1 and cluster.distributed_backend not in (None, connects):
        raise ConfigError(
            f"cluster.distributed_backend is {cluster.distributed_backend}, and the device is {device.type}, whose "
            f"processes {connects} connects",
            "leave cluster.distributed_backend out",
        )
    share, on = (
        (make_parallel, device) if counted is None else (plan_parallel, planned_device(config.runner, processes))
    )
    patience = cluster.timeout_s, cluster.init_timeout_s
    with processes.connected(device.type == "cuda", *patience) if counted is None else nullcontext():
        if counted is None:
            check_same_weights(policy, processes)
        learners, of_policy = processes.of("train"), (policy, config.actor.fsdp_config, config.algorithm)
        sharding = share(*of_policy, learners, on) if learners.here else make_acting_replica(*of_policy, learners)
        for line in (*schema.notes(config), *sharding.notes):
            console.say(line)
        yield Model(policy, device, sharding)


def _check_repeats(algorithm: schema.AlgorithmConfig, noise: Noise) -> None:
    """Refuses several greedy episodes of a start where all would be equal."""
    if algorithm.val_group_size > 1 and not algorithm.val_sampling_params.do_sample and not noise.greedy:
        raise ConfigError(
            f"algorithm.val_group_size {algorithm.val_group_size} with val_sampling_params.do_sample false: all "
            "episodes of a start would be equal",
            "set algorithm.val_sampling_params.do_sample=true",
        )


def _check_sampling(config: schema.Config, spec: PolicySpec) -> None:
    """Refuses settings of sampling that mean nothing for this policy, or with which it could not learn."""
    algorithm = config.algorithm
    if algorithm.val_sampling_params.do_sample:
        spec.check_sampling(algorithm.val_sampling_params, "algorithm.val_sampling_params.")
    if only_evaluates(config):
        return
    spec.check_sampling(algorithm.sampling_params, "algorithm.sampling_params.")
    if spec.noise.greedy and not algorithm.sampling_params.do_sample:
        raise ConfigError(
            "algorithm.sampling_params.do_sample is false, and a greedy decision of this policy has no log-probs to "
            "learn from",
            "set algorithm.sampling_params.do_sample=true",
        )


def build_policy(
    config: schema.Config, processes: Group, sides: Sides, say: Callable[[str], None] | None = None
) -> tuple[Policy, torch.device]:
    """Builds the policy on its device, bound to both sides' envs in turn, so that what does not fit is found here.

    Args:
        say: as in :func:`embodied.learn.checkpoint.loading.load`.
    """
    runner = config.runner
    if runner.deterministic:
        reproducible_arithmetic()
    torch.set_num_threads(runner.num_threads)
    device = device_of(runner, processes)
    policy = make_policy(config, device)
    for side in (sides.eval, sides.train):
        policy.bind(side.spec)
    if runner.ckpt_path is not None:
        load(Path(runner.ckpt_path), policy, say)
    return policy, device


def planned_device(runner: schema.RunnerConfig, processes: Group) -> torch.device:
    """Returns the device for which a dry run counts: a GPU if ``runner.device_memory_gib`` is set."""
    return device_of(runner, processes) if runner.device_memory_gib is None else torch.device("cuda")


def device_of(runner: schema.RunnerConfig, processes: Group) -> torch.device:
    """Returns the device of this process's policy. Raises :class:`ConfigError` if there is none such."""
    return _device(runner.device, processes)


def make_policy(config: schema.Config, device: torch.device) -> Policy:
    """Builds the policy on ``device``, with the weights that the model's own keys name; it is not bound to
    an env yet."""
    model = config.actor.model
    seed_generators(config.runner.seed)
    policy = schema.load_target(model.target, "actor.model._target_")(**schema.target_kwargs(model, "actor.model"))
    freeze(policy, model.freeze_patterns)
    policy.to(device)
    return policy


def origin_of(config: schema.Config, side: ConfiguredEnv) -> Origin:
    """Returns the origin of a policy, for its checkpoints: the model, and the env of ``side``."""
    model, seed = config.actor.model, config.runner.seed
    kwargs = schema.target_kwargs(model, "actor.model")
    simulator = Simulator(side.config.target, dict(side.kwargs), config.env.python)
    return Origin(model.target, kwargs, tuple(model.freeze_patterns), seed, side.spec, simulator)


def reproducible_arithmetic() -> None:
    """Asks MKL, before its first call, for one code path: else a row of a product depends on its place in a batch.

    With it, which slots are ready together changes no bit of a record, as ``runner.deterministic`` promises. On the
    small OpenVLA-OFT the cost is within the noise at 2 rows and below a tenth of the CPU time at 8.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")


def sampling(config: schema.EvalSamplingConfig, logprob_dtype: str = "float32") -> Sampling:
    """Returns the sampling settings of actions in the form that the runtime and the learner read.

    Args:
        logprob_dtype: of a training, ``algorithm.logprob_dtype``; nothing reads an evaluation's log-probs.

    Raises:
        ConfigError: they are drawn in two ways, which an evaluation splits
        (:mod:`embodied.run.evaluation.greedy_and_sampled`).
    """
    if config.do_sample == "both":
        raise ConfigError(
            "algorithm.val_sampling_params.do_sample=both asks for two evaluations, and here actions are drawn one way",
            "set it to true or false, or run python -m embodied.eval with it",
        )
    return Sampling(
        config.do_sample, config.temperature, config.top_k, config.top_p, config.repetition_penalty,
        config.max_new_tokens, config.min_new_tokens, tuple(config.stop), config.ignore_eos,
        config.include_stop_str_in_output, logprob_dtype,
    )  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Derived sizes of a run: episodes, groups, slab rows, optimizer steps. ``runner.dry_run`` prints them, and they
    size the slab."""

    episodes: int  # episodes in an iteration, over all ranks
    groups: int
    rows: int  # rows in a rank's slab: its records (with gae, final observations) if none ends early, or two a slot;
    # with max_staleness so many again for each iteration that is under way besides
    optimizer_steps: int  # upper limit for an iteration
    fields: Mapping[str, ArraySpec]  # fields of a record, by name


def sizes(config: schema.Config, sides: Sides, processes: Group, spec: PolicySpec) -> Sizes:
    """Computes the derived sizes of a run."""
    hosts = processes.of("rollout")
    episodes = schema.episodes_per_iteration(config)
    records = episodes * -(-sides.train.max_steps // spec.num_action_chunks)
    finals = episodes if config.algorithm.bootstraps else 0
    slots = slots_of(config, hosts)
    steps = -(-records // config.actor.global_batch_size) * config.algorithm.update_epoch
    if config.algorithm.learner == "sac":
        steps = math.ceil(records * config.algorithm.sac.updates_per_record)
    own = hosts.divide(records + finals)
    if not only_evaluates(config):
        _check_queue(config.actor.channel.queue_size, own, hosts)
    held = own * config.algorithm.max_staleness
    rows = 2 * slots if only_evaluates(config) else held + max(own, 2 * slots)
    return Sizes(episodes, episodes // config.algorithm.group_size, rows, steps, record_fields(sides, spec))


def record_fields(sides: Sides, spec: PolicySpec) -> dict[str, ArraySpec]:
    """Returns the fields of a record: the env's, those of the policy's decision, and the runtime's."""
    told = info_fields(dict.fromkeys((*sides.train.spec.info, *sides.eval.spec.info)))
    if sides.train.config.reward_mode == "own_successes":
        assert isinstance(sides.train.env, HasProgressFeatures)  # preflight refuses the others
        told |= feature_fields(sides.train.env.num_progress_features)
    if sides.train.spec.interventions:
        told |= intervention_fields()
    return {**sides.train.spec.obs, **spec.decision, **runtime_fields(spec.num_action_chunks), **told}


def _check_queue(most: int, records: int, hosts: Group) -> None:
    """Refuses an iteration whose records may not all wait for the update."""
    if 0 < most < records:
        raise ConfigError(
            f"actor.channel.queue_size is {most}, and an iteration has up to {records} records in "
            f"{'the process' if hosts.size == 1 else f'each of {hosts.size} processes'}, which wait for one update",
            f"set actor.channel.queue_size to {records} or more, or to 0; or lower algorithm.rollout_epoch",
        )


def _device(name: str, processes: Group) -> torch.device:
    """Returns the device of this process: that of the placement. With several on a machine, each has a GPU."""
    found = device_named(name, "runner.device")
    if found.type == "cpu" or (processes.size == 1 and processes.device == 0):
        return found
    if found.index is not None or processes.device >= torch.cuda.device_count():
        raise ConfigError(
            f"runner.device is {name}, and {processes.local_size} processes on this machine of "
            f"{torch.cuda.device_count()} GPUs need one each, this one number {processes.device}",
            "set runner.device=cuda, and torchrun --nproc-per-node to the number of GPUs",
        )
    device = torch.device("cuda", processes.device)
    torch.cuda.set_device(device)
    return device
