"""Refuses settings of remembered starts that cannot work: ``adv_type: start_value``, ``data.start_sampling``."""

from __future__ import annotations

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config
from embodied.schema.keys.sections.algorithm import StartValueConfig
from embodied.schema.keys.sections.data import DataConfig


def check_starts(config: Config) -> None:
    """Refuses what leaves remembered starts without effect, or the gradient with a bias.

    Raises:
        ConfigError: with the keys.
    """
    algorithm, data = config.algorithm, config.data
    if data.start_sampling == "informative":
        _check_sampling(data, config.runner.task.supervised)
    elif algorithm.adv_type != "start_value" and algorithm.start_value != StartValueConfig():
        raise ConfigError(
            f"algorithm.start_value is set, and algorithm.adv_type {algorithm.adv_type} with data.start_sampling even "
            "remembers no starts",
            "leave algorithm.start_value out, or set algorithm.adv_type=start_value",
        )
    if algorithm.adv_type == "start_value":
        _check_compared(config)
    remembers = algorithm.adv_type == "start_value" or data.start_sampling == "informative"
    if remembers and algorithm.dynamic_sampling and algorithm.use_kl_in_reward:
        raise ConfigError(
            "algorithm.dynamic_sampling drops groups before their KL is known, and use_kl_in_reward takes that "
            "off the returns of the others: what is remembered of a start would be made of both",
            "set algorithm.use_kl_in_reward=false (the KL is then in the loss), or algorithm.dynamic_sampling=false",
        )


def _check_compared(config: Config) -> None:
    algorithm = config.algorithm
    if not algorithm.sampling_params.do_sample:
        raise ConfigError(
            "algorithm.adv_type start_value with sampling_params.do_sample false: a start gives the same return again, "
            "and nothing is compared",
            "set algorithm.sampling_params.do_sample=true",
        )
    for key in ("dynamic_sampling", "filter_rewards"):
        if getattr(algorithm, key) and algorithm.group_size > 1 and not config.env.train.use_fixed_reset_state_ids:
            raise ConfigError(
                f"algorithm.{key} chooses groups by the returns of one start, and env.train.use_fixed_reset_state_ids "
                "is false, which gives each episode its own",
                f"set env.train.use_fixed_reset_state_ids=true, or algorithm.{key}=false",
            )
        if getattr(algorithm, key) and algorithm.group_size == 1:
            raise ConfigError(
                f"algorithm.{key} chooses groups by their returns, and algorithm.group_size is 1: an episode would be "
                "chosen by its own return",
                f"set algorithm.{key}=false, or algorithm.group_size to 2 or more",
            )


def _check_sampling(data: DataConfig, supervised: bool) -> None:
    if supervised:
        raise ConfigError(
            "data.start_sampling informative chooses the starts of episodes, and runner.task_type is sft: it runs none",
            "leave data.start_sampling out",
        )
    if data.drop_last or not data.shuffle:
        key, value = ("drop_last", "false") if data.drop_last else ("shuffle", "true")
        raise ConfigError(
            f"data.start_sampling informative draws starts by chance, and data.{key} is "
            f"{str(getattr(data, key)).lower()}: there is no pass through all starts",
            f"set data.{key}={value}, or data.start_sampling=even",
        )
