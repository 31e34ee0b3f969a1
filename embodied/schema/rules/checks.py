"""Refuses combinations of settings that cannot work."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial

from embodied.errors import ConfigError, UnknownNameError, broken, refuse, unknown_name
from embodied.schema.keys.base import Precision
from embodied.schema.keys.config import Config
from embodied.schema.keys.placement import placed
from embodied.schema.keys.sections.actor import ModelConfig
from embodied.schema.keys.sections.algorithm import LOSSES, AlgorithmConfig
from embodied.schema.keys.sections.fsdp import OF_SHARDS, FsdpConfig
from embodied.schema.keys.sections.runner import check_name
from embodied.schema.others.values import as_overrides, other_name, translated
from embodied.schema.rules.aliases import check_aliases
from embodied.schema.rules.eval_checks import check_answers, check_evaluation
from embodied.schema.rules.head_checks import check_head, check_head_learner
from embodied.schema.rules.no_effect import check_critic
from embodied.schema.rules.off_policy_checks import check_off_policy
from embodied.schema.rules.rollout_checks import (
    check_age_of_weights,
    check_engine,
    check_generation,
    check_own_successes,
    check_rounds,
    check_schedule_of_rollouts,
    check_served,
)
from embodied.schema.rules.start_checks import check_starts
from embodied.schema.rules.term_checks import check_terms
from embodied.schema.rules.text_checks import check_lengths, check_order, check_reward_model, check_unused
from embodied.schema.rules.unused_keys import check_effect


def episodes_per_iteration(config: Config) -> int:
    """Episodes of an iteration: as many as ``data.rollout_batch_size`` asks for, else one a slot and epoch."""
    if (problems := config.data.rollout_batch_size) is not None:
        return problems * config.algorithm.group_size
    return config.algorithm.rollout_epoch * config.env.train.total_num_envs


def episodes_told(config: Config) -> str:
    """Formats the keys that determine the number of episodes, with their values, for messages."""
    if (problems := config.data.rollout_batch_size) is not None:
        return f"data.rollout_batch_size {problems} · group_size {config.algorithm.group_size}"
    return (
        f"rollout_epoch {config.algorithm.rollout_epoch} · env.train.total_num_envs {config.env.train.total_num_envs}"
    )


def only_evaluates(config: Config) -> bool:
    """Returns whether evaluations are all that runs episodes."""
    return config.runner.only_eval or config.runner.task.supervised


def check(config: Config) -> None:
    """Refuses combinations that cannot work, all at once. Raises :class:`ConfigError` with the numbers."""
    refuse(broken(rules(config)))


def rules(config: Config) -> Iterator[Callable[[], object]]:
    """Yields the rules that hold for a configuration; each raises :class:`ConfigError` if it is broken."""
    algorithm = config.algorithm
    yield partial(check_critic, config)
    yield partial(check_effect, config)
    yield partial(check_aliases, config)
    yield partial(check_name, config.runner)
    yield partial(placed, config.cluster)
    yield partial(_check_patterns, config.actor.model)
    yield partial(_check_workers, config)
    yield partial(check_lengths, config)
    yield partial(check_unused, config)
    yield partial(check_reward_model, config)
    yield partial(check_schedule_of_rollouts, config)
    yield partial(check_engine, config)
    yield partial(check_generation, config)
    yield partial(check_evaluation, config)
    yield partial(check_answers, config.runner)
    yield partial(check_head, config)
    if config.runner.only_eval or config.runner.task.records:
        return
    yield partial(check_served, config)
    yield partial(check_head_learner, config)
    yield partial(_check_batches, config)
    yield partial(_check_schedule, config)
    yield partial(check_terms, config)
    yield partial(check_starts, config)
    yield partial(check_off_policy, config)
    if config.runner.task.supervised:
        yield partial(_check_sft, config)
        return
    yield partial(check_order, config)
    yield partial(check_age_of_weights, config)
    yield partial(_check_groups, config)
    yield partial(check_own_successes, config)
    yield partial(_check_loss, algorithm)
    yield partial(_check_levels, algorithm)
    yield partial(_check_filter, algorithm)
    yield partial(_check_kl, config)
    yield partial(_check_weights, algorithm)
    yield partial(check_rounds, config, GROUP_ADVANTAGES)


def _check_workers(config: Config) -> None:
    train, evaluation = config.env.train.total_num_envs, config.env.eval.total_num_envs
    slots = evaluation if only_evaluates(config) else max(train, evaluation)
    if isinstance(config.env.num_workers, int) and config.env.num_workers > slots:
        raise ConfigError(
            f"env.num_workers {config.env.num_workers} is more than the {slots} env slots: some would be idle",
            f"set env.num_workers to {slots} or less, or raise env.train.total_num_envs and env.eval.total_num_envs",
        )
    if config.env.python is not None and shutil.which(config.env.python) is None:
        raise ConfigError(
            f"env.python is {config.env.python}, which is no program that can be run",
            "set it to the interpreter of an environment that has the simulator, e.g. /path/to/bin/python, or null",
        )


def _check_loss(algorithm: AlgorithmConfig) -> None:
    if "." not in algorithm.loss_type and algorithm.loss_type not in LOSSES:
        key, name = "algorithm.loss_type", algorithm.loss_type
        if told := other_name(key, name):
            raise UnknownNameError(f"unknown loss type '{name}'.{told}", f"set {as_overrides(translated(key, name))}")
        raise unknown_name("loss type", name, LOSSES, key)


def _check_levels(algorithm: AlgorithmConfig) -> None:
    if algorithm.reward_type == "action_level" and algorithm.logprob_type == "chunk_level":
        raise ConfigError(
            "algorithm.reward_type action_level gives an advantage to each action, and algorithm.logprob_type "
            "chunk_level has one ratio for all of them",
            "set algorithm.logprob_type=action_level or algorithm.reward_type=chunk_level",
        )
    if algorithm.reward_type == "token_level" and algorithm.logprob_type != "token_level":
        raise ConfigError(
            "algorithm.reward_type token_level gives an advantage to each token, and algorithm.logprob_type "
            f"{algorithm.logprob_type} has one ratio for several",
            "set algorithm.logprob_type=token_level or algorithm.reward_type=chunk_level",
        )


def _check_filter(algorithm: AlgorithmConfig) -> None:
    if algorithm.min_filter_prefix_tokens is not None and algorithm.logprob_type != "token_level":
        raise ConfigError(
            "algorithm.min_filter_prefix_tokens leaves out tokens, and algorithm.logprob_type "
            f"{algorithm.logprob_type} has one ratio for several",
            "set algorithm.logprob_type=token_level, or leave algorithm.min_filter_prefix_tokens out",
        )
    if algorithm.filter_rewards and algorithm.rewards_lower_bound > algorithm.rewards_upper_bound:
        raise ConfigError(
            f"algorithm.rewards_lower_bound {algorithm.rewards_lower_bound} is above rewards_upper_bound "
            f"{algorithm.rewards_upper_bound}: no group would be left",
            "exchange algorithm.rewards_lower_bound and algorithm.rewards_upper_bound",
        )


def _check_weights(algorithm: AlgorithmConfig) -> None:
    """Refuses settings that would train nothing or weigh nothing."""
    if algorithm.critic_warmup_steps and algorithm.adv_type != "gae":
        raise ConfigError(
            f"algorithm.critic_warmup_steps {algorithm.critic_warmup_steps} trains the value head alone, and "
            f"algorithm.adv_type {algorithm.adv_type} trains none",
            "set algorithm.critic_warmup_steps=0, or algorithm.adv_type=gae (algorithm=ppo)",
        )
    if algorithm.behav_imp_weight_mode == "mask" and algorithm.behav_imp_weight_cap is None:
        raise ConfigError(
            "algorithm.behav_imp_weight_mode is mask, and behav_imp_weight_cap is null: no weight would be masked",
            "set algorithm.behav_imp_weight_cap, e.g. to 2.0, or algorithm.behav_imp_weight_mode=cap",
        )


def _check_batches(config: Config) -> None:
    if config.actor.micro_batch_size > config.actor.global_batch_size:
        raise ConfigError(
            f"actor.micro_batch_size {config.actor.micro_batch_size} is larger than "
            f"actor.global_batch_size {config.actor.global_batch_size}",
            "lower actor.micro_batch_size: it is the part of an optimizer batch that is computed at once",
        )
    _check_fsdp(config.actor.fsdp_config, config.actor.model.precision)


def _check_fsdp(fsdp: FsdpConfig, precision: Precision) -> None:
    usual = FsdpConfig(strategy=fsdp.strategy)
    changed = [name for name in OF_SHARDS if getattr(fsdp, name) != getattr(usual, name)]
    same_format = fsdp.mixed_precision.param_dtype in (None, precision) and fsdp.mixed_precision.reduce_dtype is None
    as_ever = {  # replicate always does so, or gathers nothing
        "enable_gradient_accumulation", "forward_prefetch", "backward_prefetch", "offload_pin_memory",
        *(["mixed_precision"] if same_format else []),
    }  # fmt: skip
    changed = [name for name in changed if name not in as_ever]
    if fsdp.strategy == "replicate" and changed:
        raise ConfigError(
            f"actor.fsdp_config.strategy is replicate, and {', '.join(changed)} of it are for fsdp2",
            "set actor.fsdp_config.strategy=fsdp2, or leave the others out",
        )
    if fsdp.fsdp_size == 0:
        raise ConfigError(
            "actor.fsdp_config.fsdp_size is 0", "set it to the processes that share a copy, or to -1 for all of them"
        )
    if fsdp.mixed_precision.param_dtype == "bf16" and precision != "bf16":
        raise ConfigError(
            f"actor.fsdp_config.mixed_precision.param_dtype is bf16 and actor.model.precision {precision}: the policy "
            "would meet weights of another format than it computes in",
            "set actor.model.precision=bf16, or leave param_dtype at null",
        )


def _check_patterns(model: ModelConfig) -> None:
    for pattern in model.freeze_patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"actor.model.freeze_pattern '{pattern}' is no regular expression: {error}", "correct it"
            ) from error


def _check_schedule(config: Config) -> None:
    lr, schedule, iterations = config.actor.optim.lr, config.actor.lr_sched, config.runner.max_epochs
    for key, rate in (("min_lr", schedule.min_lr), ("lr_warmup_init", schedule.lr_warmup_init)):
        if rate is not None and rate > lr:
            raise ConfigError(
                f"actor.lr_sched.{key} {rate:g} is above actor.optim.lr {lr:g}",
                f"lower actor.lr_sched.{key}, or raise actor.optim.lr",
            )
    if schedule.min_lr is not None and schedule.min_lr_ratio:
        raise ConfigError(
            f"actor.lr_sched.min_lr {schedule.min_lr:g} and min_lr_ratio {schedule.min_lr_ratio:g} both say the lowest "
            "learning rate",
            "set one of them: actor.lr_sched.min_lr=null or actor.lr_sched.min_lr_ratio=0",
        )
    end = iterations if schedule.lr_decay_iters is None else schedule.lr_decay_iters
    warmup = schedule.lr_warmup_iters or schedule.lr_warmup_fraction * iterations
    if schedule.lr_decay_style != "constant" and iterations and warmup >= end:
        raise ConfigError(
            f"the learning rates rise until iteration {warmup:g} and would have fallen by iteration {end:g} "
            f"(actor.lr_sched, runner.max_epochs {iterations})",
            "shorten the warm-up, raise actor.lr_sched.lr_decay_iters, or set actor.lr_sched.lr_decay_style=constant",
        )


def _check_kl(config: Config) -> None:
    algorithm, episodes = config.algorithm, episodes_per_iteration(config)
    for key, value in (
        ("use_kl_in_reward=true", algorithm.use_kl_in_reward),
        ("kl_ctrl.type=adaptive", algorithm.kl_ctrl.type == "adaptive"),
        (f"reference_reset_interval={algorithm.reference_reset_interval}", algorithm.reference_reset_interval),
    ):
        if value and not algorithm.kl_beta:
            raise ConfigError(
                f"algorithm.{key} says how a KL penalty is used, and algorithm.kl_beta is 0: there is none",
                f"set algorithm.kl_beta above 0, or remove algorithm.{key.partition('=')[0]}",
            )
    if algorithm.use_kl_in_reward and algorithm.unbiased_kl_estimate:
        raise ConfigError(
            "algorithm.unbiased_kl_estimate corrects the KL in the loss for steps since it acted, and "
            "algorithm.use_kl_in_reward is true: the KL in the reward is that of the policy that acted",
            "set algorithm.unbiased_kl_estimate=false or algorithm.use_kl_in_reward=false",
        )
    if algorithm.kl_ctrl.type == "adaptive" and algorithm.kl_ctrl.horizon < episodes:
        raise ConfigError(
            f"algorithm.kl_ctrl.horizon {algorithm.kl_ctrl.horizon} is less than the {episodes} episodes of an "
            "iteration: the weight would change by more than a fifth at a time",
            f"set algorithm.kl_ctrl.horizon to {episodes} or more; 100 iterations are {100 * episodes}",
        )
    if algorithm.unbiased_kl_estimate and algorithm.kl_penalty_type not in ("k3", "low_var_kl"):
        raise ConfigError(
            f"algorithm.unbiased_kl_estimate corrects low_var_kl, and kl_penalty_type is {algorithm.kl_penalty_type}",
            "set algorithm.kl_penalty_type=low_var_kl or algorithm.unbiased_kl_estimate=false",
        )


def _check_sft(config: Config) -> None:
    data = config.data
    if config.actor.enable_dp_load_balance:
        raise ConfigError(
            "actor.enable_dp_load_balance exchanges what processes have collected, and runner.task_type is sft: each "
            "reads its own samples of a step, equally many",
            "leave actor.enable_dp_load_balance out",
        )
    for key in ("val_before_train", "enable_dynamic_batch_size"):
        if getattr(config.runner, key):
            raise ConfigError(
                f"runner.{key} is for reinforcement learning, and runner.task_type is sft",
                f"set runner.{key}=false; samples of a pass are actor.micro_batch_size",
            )
    if not data.train_data_paths and data.custom_cls.path is None:
        raise ConfigError(
            "data.train_data_paths is empty: there is nothing to learn from",
            "add data=PATH to the command; python -m embodied.tools.demos env=NAME makes demonstrations",
        )
    if data.test_size >= 1 and data.test_size % 1:
        raise ConfigError(
            f"data.test_size {data.test_size:g} is neither a share below 1 nor a whole number of episodes",
            "set data.test_size=0.1 or data.test_size=10",
        )


GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo")


def _check_groups(config: Config) -> None:
    algorithm, episodes = config.algorithm, episodes_per_iteration(config)
    if episodes % algorithm.group_size:
        raise ConfigError(
            f"group_size {algorithm.group_size} does not divide {episodes} episodes ({episodes_told(config)})",
            "change algorithm.group_size, algorithm.rollout_epoch or env.train.total_num_envs so that it does",
        )
    if algorithm.adv_type in GROUP_ADVANTAGES:
        _check_comparable(config)


def _check_comparable(config: Config) -> None:
    algorithm = config.algorithm
    if algorithm.group_size == 1:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} compares episodes of a group, and group_size is 1",
            "set algorithm.group_size to 2 or more",
        )
    if not config.env.train.use_fixed_reset_state_ids:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} compares episodes of one start, and "
            "env.train.use_fixed_reset_state_ids is false, which gives each episode its own",
            "set env.train.use_fixed_reset_state_ids=true",
        )
    if not algorithm.sampling_params.do_sample:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} with sampling_params.do_sample false: all episodes of a group "
            "would be equal",
            "set algorithm.sampling_params.do_sample=true",
        )
