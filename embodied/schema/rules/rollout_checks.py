"""Refuses settings of rollouts that cannot work: who is served when, and by what."""

from __future__ import annotations

import shutil

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config
from embodied.schema.keys.sections.env import RolloutConfig
from embodied.schema.rules.text_checks import context_parallel_size

SERVED = "embodied.models.served.build_policy"


def check_schedule_of_rollouts(config: Config) -> None:
    """Refuses pipeline stages together with ``rollout.schedule=ready``, which has none."""
    rollout, slots = config.rollout, max(config.env.train.total_num_envs, config.env.eval.total_num_envs)
    if rollout.schedule == "ready" and rollout.pipeline_stage_num > 1:
        raise ConfigError(
            f"rollout.pipeline_stage_num {rollout.pipeline_stage_num} divides the slots of a lockstep, and "
            "rollout.schedule is ready, which serves whichever slots wait",
            "set rollout.schedule=lockstep, or leave rollout.pipeline_stage_num at 1",
        )
    if rollout.schedule == "lockstep" and rollout.max_wait_ms is not None:
        raise ConfigError(
            f"rollout.max_wait_ms {rollout.max_wait_ms:g} ends the wait for rollout.min_batch slots, and "
            "rollout.schedule lockstep waits for all",
            "set rollout.schedule=ready, or leave rollout.max_wait_ms at null",
        )
    if rollout.pipeline_stage_num > slots:
        raise ConfigError(
            f"rollout.pipeline_stage_num {rollout.pipeline_stage_num} is more than the {slots} env slots",
            f"set rollout.pipeline_stage_num to {slots} or less, or raise env.train.total_num_envs",
        )


def check_own_successes(config: Config) -> None:
    """Refuses ``env.train.reward_mode=own_successes`` where it could change nothing, or pays the wrong way."""
    algorithm, train = config.algorithm, config.env.train
    if train.reward_mode != "own_successes":
        return
    if algorithm.adv_type not in ("gae", "reinforce_plus_plus"):
        raise ConfigError(
            "env.train.reward_mode own_successes pays for each change of a potential, which cancels out in the sum of "
            f"an episode's rewards, and algorithm.adv_type {algorithm.adv_type} reads nothing but such sums",
            "set algorithm=ppo (algorithm.adv_type=gae), whose value head sees each reward; or algorithm.adv_type="
            "reinforce_plus_plus; or env.train.reward_mode=sparse or dense",
        )
    if algorithm.filter_rewards:
        raise ConfigError(
            "env.train.reward_mode own_successes teaches by failures that come near to a success, and "
            "algorithm.filter_rewards leaves out groups by returns without what is paid for that: groups of failures",
            "set algorithm.filter_rewards=false, or env.train.reward_mode=sparse or dense",
        )
    if train.reward_coef <= 0:
        raise ConfigError(
            f"env.train.reward_coef is {train.reward_coef:g}, and env.train.reward_mode own_successes pays so many "
            "times as much for success and for coming nearer to one: expected more than 0",
            "set env.train.reward_coef=1.0",
        )


OF_ENGINES = (
    "python", "gpu_memory_utilization", "tensor_parallel_size", "enable_offload", "init_timeout_s", "answer_timeout_s",
    "max_engine_restarts", "max_logprob_gap", "attention_backend", "vllm",
)  # fmt: skip


def check_generation(config: Config) -> None:
    """Refuses keys of the generation that contradict the policy, or have no effect."""
    rollout, precision = config.rollout, config.actor.model.precision
    if rollout.precision not in (None, precision):
        raise ConfigError(
            f"rollout.precision is {rollout.precision} and actor.model.precision {precision}: what generates has the "
            "weights that are trained, in their format",
            "leave rollout.precision out, or set actor.model.precision to the same",
        )
    if rollout.enforce_eager and rollout.cuda_graph_max_bs is not None:
        raise ConfigError(
            f"rollout.cuda_graph_max_bs is {rollout.cuda_graph_max_bs}, and rollout.enforce_eager true replays nothing "
            "as a CUDA graph",
            "set rollout.enforce_eager=false, or leave rollout.cuda_graph_max_bs out",
        )


def check_engine(config: Config) -> None:
    """Refuses settings that the chosen inference engine cannot keep."""
    rollout, usual = config.rollout, RolloutConfig()
    if rollout.backend == "sglang":
        raise ConfigError(
            "rollout.backend sglang is not offered: nobody could run SGLang where the engines were written, and what "
            "has not been run would fail in the midst of a training",
            "set rollout.backend=vllm, or native",
        )
    if rollout.backend == "native":
        changed = [name for name in OF_ENGINES if getattr(rollout, name) not in (False, getattr(usual, name))]
        if changed:
            raise ConfigError(
                f"rollout.backend is native, and {', '.join(f'rollout.{name}' for name in changed)} is for an engine",
                "set rollout.backend=vllm, or leave it out",
            )
        _check_without_engine(config)
        return
    if rollout.python is not None and shutil.which(rollout.python) is None:
        raise ConfigError(
            f"rollout.python is {rollout.python}, which is no program that can be run",
            "set it to the interpreter of an environment that has vllm, e.g. /path/to/bin/python, or null",
        )
    learns = not (config.runner.only_eval or config.runner.task.supervised)
    if learns and config.algorithm.logprob_dtype != "float32":
        raise ConfigError(
            f"algorithm.logprob_dtype is {config.algorithm.logprob_dtype}, and the engine of rollout.backend "
            f"{rollout.backend} computes log-probs in float32: no ratio would begin at 1",
            "set algorithm.logprob_dtype=float32, or rollout.backend=native",
        )
    if config.algorithm.adv_type == "gae" and learns:
        raise ConfigError(
            f"rollout.backend {rollout.backend} gives no values, and algorithm.adv_type gae needs them",
            "set rollout.backend=native, or another algorithm.adv_type, e.g. grpo",
        )


def _check_without_engine(config: Config) -> None:
    """Refuses keys that say how weights come to an engine, and where they are while it generates."""
    actor, travels = config.actor, config.runner.weight_sync_dtype
    if (kept := config.rollout.validate_save_dir) is not None:
        raise ConfigError(
            f"rollout.validate_save_dir is {kept}, and rollout.backend is native: the network that learns is the one "
            "that acts, so that there are no weights to compare",
            "leave rollout.validate_save_dir out; or of a language model set rollout.backend=vllm",
        )
    if travels is not None:
        raise ConfigError(
            f"runner.weight_sync_dtype is {travels}, and rollout.backend is native: the network that learns is the one "
            "that acts, so that no weights travel",
            "leave runner.weight_sync_dtype out; actor.model.precision is the format of both, and of a language model "
            "that acts apart: set rollout.backend=vllm",
        )
    on_host = actor.fsdp_config.strategy in ("fsdp", "fsdp2") and actor.fsdp_config.cpu_offload
    if actor.offload_weight and not on_host:
        raise ConfigError(
            "actor.offload_weight is true, and rollout.backend is native: the policy acts and learns in one copy, so "
            "that its weights are never idle",
            "set actor.offload_optimizer=true; with several processes set actor.fsdp_config.strategy=fsdp2 and "
            "actor.fsdp_config.cpu_offload=true, which keep shards in host memory; or of a language model set "
            "rollout.backend=vllm",
        )


def check_age_of_weights(config: Config) -> None:
    """Refuses settings that do not work while older weights act than those that learn."""
    algorithm, rollout = config.algorithm, config.rollout
    late = f"algorithm.max_staleness is {algorithm.max_staleness}"
    if rollout.recompute_logprobs and (algorithm.max_staleness or config.runner.weight_sync_interval > 1):
        interval = f"runner.weight_sync_interval is {config.runner.weight_sync_interval}"
        raise ConfigError(
            f"rollout.recompute_logprobs is true and {late if algorithm.max_staleness else interval}: recomputed "
            "log-probs are those of the weights that learn, and the ratios of the loss would not see that older ones "
            "have acted",
            "set rollout.recompute_logprobs=false; algorithm.loss_type=tis has both log-probs",
        )
    if not algorithm.max_staleness:
        return
    if rollout.backend != "native":
        raise ConfigError(
            f"{late}, and rollout.backend {rollout.backend}: an engine has one set of weights, and is given others "
            "between two rollouts, when no update runs",
            "set algorithm.max_staleness=0, or rollout.backend=native",
        )
    if (together := context_parallel_size(config)) > 1:
        raise ConfigError(
            f"{late}, and actor.model.context_parallel_size {together}: processes that compute a text together cannot "
            "act meanwhile",
            "set actor.model.context_parallel_size=1, or algorithm.max_staleness=0",
        )
    if config.env.enable_offload:
        raise ConfigError(
            f"{late}, for which episodes run during updates, and env.enable_offload true, which ends the env workers "
            "before each update",
            "set env.enable_offload=false, or algorithm.max_staleness=0",
        )
    if not rollout.enforce_eager:
        raise ConfigError(
            f"{late}, and rollout.enforce_eager false: a CUDA graph cannot be captured while an update runs",
            "set rollout.enforce_eager=true, or algorithm.max_staleness=0",
        )
    if config.reward.use_reward_model and config.reward.model.sharded:
        raise ConfigError(
            f"{late}, and reward.model.strategy {config.reward.model.strategy}: layers of the reward model would be "
            "exchanged while an update exchanges gradients, in an order that differs between processes",
            "set reward.model.strategy=replicate, or algorithm.max_staleness=0",
        )
    if algorithm.max_staleness > 1:
        _check_several_ages(config, late)
    own = config.actor.model.model_extra or {}
    if compiled := [key for key in ("torch_compile", "torch_compile_acting") if own.get(key)]:
        raise ConfigError(
            f"{late}, and actor.model.{compiled[0]} true: a copy of the policy acts, and compiled layers have no copy",
            "set actor.model.torch_compile=false rollout.use_torch_compile=false, or algorithm.max_staleness=0",
        )


def _check_several_ages(config: Config, late: str) -> None:
    """Refuses settings that do not work where episodes of several iterations run at the same time."""
    if (interval := config.runner.weight_sync_interval) > 1:
        raise ConfigError(
            f"{late}, with which a rollout acts with the weights of so many iterations before, and "
            f"runner.weight_sync_interval {interval}, with which those of up to {interval} iterations act",
            "set runner.weight_sync_interval=1, or algorithm.max_staleness=1",
        )
    if config.algorithm.adv_type == "remax":
        raise ConfigError(
            f"{late}, and algorithm.adv_type remax: its greedy episodes draw otherwise than the sampled ones of other "
            "iterations that run at the same time",
            "set algorithm.max_staleness=1, or another algorithm.adv_type, e.g. grpo",
        )


def check_served(config: Config) -> None:
    """Refuses to train a policy whose weights are behind a server."""
    if config.actor.model.target != SERVED:
        return
    raise ConfigError(
        "actor.model is served: its weights are behind a server, and there is nothing here to train",
        "evaluate it with python -m embodied.eval; or train a head around it (algorithm=sac model=head_residual "
        f"actor.model.base.url={(config.actor.model.model_extra or {}).get('url')}), or the checkpoint that it serves",
    )


def check_rounds(config: Config, group_advantages: tuple[str, ...]) -> None:
    """Refuses sampling that refills nothing, or that compares an episode with itself."""
    algorithm = config.algorithm
    compared = (*group_advantages, "reinforce_plus_plus_baseline", "start_value")
    if algorithm.dynamic_sampling and algorithm.adv_type not in compared:
        raise ConfigError(
            f"algorithm.dynamic_sampling refills groups whose episodes do not differ, and algorithm.adv_type "
            f"{algorithm.adv_type} does not compare the episodes of a group",
            f"set algorithm.dynamic_sampling=false, or algorithm.adv_type to one of {', '.join(compared)}",
        )
    if algorithm.dynamic_sampling and algorithm.max_sampling_rounds == 1:
        raise ConfigError(
            "algorithm.dynamic_sampling with max_sampling_rounds 1 never refills anything",
            "set algorithm.max_sampling_rounds to 2 or more, or algorithm.dynamic_sampling=false",
        )
    if algorithm.adv_type == "remax" and not algorithm.sampling_params.do_sample:
        raise ConfigError(
            "algorithm.adv_type remax with sampling_params.do_sample false compares the greedy episode with itself",
            "set algorithm.sampling_params.do_sample=true",
        )
