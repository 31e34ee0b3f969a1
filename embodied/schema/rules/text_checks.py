"""Refuses combinations of settings of texts that cannot work."""

from __future__ import annotations

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config
from embodied.schema.keys.sections.data import DataConfig


def context_parallel_size(config: Config) -> int:
    """Returns how many processes compute each text of scoring and learning together; 1: each computes its own."""
    size = (config.actor.model.model_extra or {}).get("context_parallel_size")
    return size if type(size) is int and size > 1 else 1


def check_lengths(config: Config) -> None:
    """Refuses texts that may be longer than ``runner.seq_length``, and token budgets that nothing is filled by."""
    model, whole = config.actor.model.model_extra or {}, config.runner.seq_length
    if whole is not None:
        prompt, answer = model.get("max_prompt_tokens"), model.get("max_new_tokens")
        if prompt is None or answer is None or answer < 1 or prompt + answer > whole:
            raise ConfigError(
                f"runner.seq_length is {whole}, and actor.model has max_prompt_tokens {prompt} and max_new_tokens "
                f"{answer}",
                "set data.max_prompt_length and actor.model.max_new_tokens so that together they are at most "
                "runner.seq_length, or leave that out",
            )
    _check_shortest(config)
    if (most := config.algorithm.logprob_forward_max_tokens) is None:
        return
    if not config.runner.enable_dynamic_batch_size or config.algorithm.use_kl_in_reward:
        why = (
            "the KL in the rewards is computed by records (algorithm.logprob_forward_micro_batch_size)"
            if config.runner.enable_dynamic_batch_size
            else "runner.enable_dynamic_batch_size is false, which fills passes by records"
        )
        raise ConfigError(
            f"algorithm.logprob_forward_max_tokens is {most}, and {why}",
            "leave it out, or set runner.enable_dynamic_batch_size=true and algorithm.use_kl_in_reward=false",
        )


def check_reward_model(config: Config) -> None:
    """Refuses FSDP units of a reward model that each process holds whole."""
    model = config.reward.model
    if model.wrap_policy.min_num_params and not model.sharded:
        raise ConfigError(
            f"reward.model.wrap_policy.min_num_params is {model.wrap_policy.min_num_params}, and reward.model.strategy "
            "is replicate: each process holds all of the reward model",
            "set reward.model.strategy=fsdp2, or leave reward.model.wrap_policy.min_num_params out",
        )


def _check_shortest(config: Config) -> None:
    """Refuses answers that have to be longer than they may be."""
    longest = (config.actor.model.model_extra or {}).get("max_new_tokens")
    for name in ("sampling_params", "val_sampling_params"):
        sampling = getattr(config.algorithm, name)
        if (most := sampling.max_new_tokens or longest) is not None and sampling.min_new_tokens > most:
            raise ConfigError(
                f"algorithm.{name}.min_new_tokens {sampling.min_new_tokens} is more than the {most} tokens of the "
                "longest answer",
                f"lower it, or raise algorithm.{name}.max_new_tokens and actor.model.max_new_tokens",
            )


def check_order(config: Config) -> None:
    """Refuses contradictory keys on the number or the order of problems."""
    data, algorithm = config.data, config.algorithm
    if data.rollout_batch_size is not None and algorithm.rollout_epoch > 1:
        raise ConfigError(
            f"data.rollout_batch_size {data.rollout_batch_size} and algorithm.rollout_epoch {algorithm.rollout_epoch} "
            "both say how many episodes an iteration has",
            "set algorithm.rollout_epoch=1, or leave out data.rollout_batch_size",
        )
    if not data.shuffle and algorithm.dynamic_sampling:
        raise ConfigError(
            "data.shuffle is false, and algorithm.dynamic_sampling draws the problems of a refill at random",
            "set data.shuffle=true or algorithm.dynamic_sampling=false",
        )


def check_unused(config: Config) -> None:
    """Refuses keys of data sets that nothing reads here."""
    data, usual, supervised = config.data, DataConfig(), config.runner.task.supervised
    if data.custom_cls.path is None and data.custom_cls.name != usual.custom_cls.name:
        raise ConfigError(
            f"data.custom_cls.name is {data.custom_cls.name}, and data.custom_cls.path is not set",
            "set data.custom_cls.path to its file, or leave data.custom_cls.name out",
        )
    if data.response_key != usual.response_key and not (supervised or config.runner.only_eval):
        raise ConfigError(
            f"data.response_key is {data.response_key}, and training by rewards reads no demonstrated answers",
            "leave data.response_key out, or run python -m embodied.sft; the right answer is data.answer_key",
        )
    if (
        data.filter_overlong_prompts_workers != usual.filter_overlong_prompts_workers
        and not data.filter_overlong_prompts
    ):
        raise ConfigError(
            f"data.filter_overlong_prompts_workers is {data.filter_overlong_prompts_workers}, and no prompts are "
            "counted",
            "set data.filter_overlong_prompts=true, or leave the workers out",
        )
    if data.filter_overlong_prompts and supervised:
        raise ConfigError(
            "data.filter_overlong_prompts is true, and runner.task_type is sft: demonstrations are not filtered",
            "leave it out; data.truncation says what happens with long prompts",
        )
