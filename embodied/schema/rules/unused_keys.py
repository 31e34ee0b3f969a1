"""Refuses keys that nothing reads, or that another value overrides."""

from __future__ import annotations

from collections.abc import Mapping

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config, defaults
from embodied.schema.keys.paths import MISSING, SIDES, at, own_of
from embodied.schema.keys.sections.data import DataConfig
from embodied.schema.keys.sections.reward import RewardConfig
from embodied.schema.rules.no_effect import OF_TOKENS
from embodied.schema.rules.verifier_prompts import check_handed, check_tokens

_BOTH = ("env.train.{0}", "env.eval.{0}")
LINKS: Mapping[str, tuple[str, ...]] = {
    "data.max_prompt_length": ("actor.model.max_prompt_tokens",),
    "data.truncation": ("actor.model.truncation", *_BOTH),
    "data.filter_overlong_prompts": _BOTH,
    "data.answer_key": _BOTH,
    "data.data_source_key": _BOTH,
    "data.image_key": _BOTH,
    "data.chat_template": ("actor.model.chat_template",),
    "data.add_generation_prompt": ("actor.model.add_generation_prompt",),
    "data.continue_final_message": ("actor.model.continue_final_message",),
    "rollout.eos": ("actor.model.end_tokens",),
    "data.enable_thinking": ("actor.model.enable_thinking",),
    "data.num_workers": ("env.num_workers",),
    "reward.num_workers": ("env.num_workers",),
    "actor.tokenizer.tokenizer_model": ("actor.model.tokenizer_path",),
    "rollout.padding": ("actor.model.pad_token",),
    **{key: (target,) for key, (target, _) in OF_TOKENS.items()},
    "algorithm.rollout_batch_size_per_gpu": ("rollout.policy_batch",),
}
"""Key → the keys for which it is the default; ``{0}`` is its own name. One of them has to have its value."""

USUAL = {"data.image_key": "images"}
"""Key → the default of another system, which asks for nothing where nothing takes it."""

PROBLEM_LINKS: Mapping[str, tuple[str, ...]] = {
    "data.prompt_key": _BOTH,
    "data.messages_key": _BOTH,
    "data.system_prompt": _BOTH,
    "data.validation_shuffle": ("env.eval.shuffle",),
    **{f"data.train_{name}": (f"env.train.{name}",) for name in ("subset", "split", "revision")},
    **{f"data.val_{name}": (f"env.eval.{name}",) for name in ("subset", "split", "revision")},
}
"""The same in reinforcement learning. Supervised training reads demonstrations by them."""


def check_effect(config: Config) -> None:
    """Refuses keys without effect: nothing reads them, or another value is given directly.

    Raises:
        ConfigError: with both keys.
    """
    supervised = config.runner.task.supervised
    everything, usual = config.model_dump(by_alias=True), defaults()
    for key, targets in {**LINKS, **({} if supervised else PROBLEM_LINKS)}.items():
        value, own = at(everything, key), key.rpartition(".")[2]
        names = [target.format(own) for target in targets]
        if value == at(usual, key) or any(at(everything, name) == value for name in names):
            continue
        taken = any(at(everything, name) is not MISSING for name in names)
        if not taken and (key in OF_TOKENS or value == USUAL.get(key, MISSING)):
            continue
        found = [f"{name} is {at(everything, name)!r}" for name in names if at(everything, name) is not MISSING]
        raise ConfigError(
            f"{key} is {value!r}, and " + (" and ".join(found) or f"nothing here takes it ({', '.join(names)})"),
            f"leave {key} out" + (f", or give {' and '.join(names)} the same value" if found else ""),
        )
    _check_reward(config)
    check_handed(config, [own_of(config, side).get("verifier") for side in SIDES])
    check_tokens(config)
    if not supervised:
        _check_options(config)
        _check_prefetch(config.data)
    _check_clip(config.reward)


def _check_reward(config: Config) -> None:
    """Refuses verifiers where no env takes one."""
    reward, sides = config.reward, [own_of(config, side) for side in SIDES]
    told = {
        "reward.reward_type": reward.reward_type,
        "reward.val_reward_type": reward.val_reward_type,
        "reward.reward_scale": reward.reward_scale,
        "reward.clip_min": reward.clip_min,
        "reward.clip_max": reward.clip_max,
        "reward.custom_reward_function.path": reward.custom_reward_function.path,
        "reward.remote.enable": reward.remote.enable or None,
    }
    given = [key for key, value in told.items() if value is not None]
    if given and not any("verifier" in own for own in sides):
        raise ConfigError(
            f"{' and '.join(given)}: {config.env.train.target} takes no verifier",
            f"leave out {' and '.join(given)}, or choose an env of texts, e.g. env=math",
        )


def _check_clip(reward: RewardConfig) -> None:
    """Refuses bounds that leave nothing between them."""
    low, high = reward.clip_min, reward.clip_max
    if low is not None and high is not None and low > high:
        raise ConfigError(
            f"reward.clip_min {low:g} is above reward.clip_max {high:g}", "exchange reward.clip_min and clip_max"
        )


def _check_prefetch(data: DataConfig) -> None:
    """Refuses reading ahead where nothing is read ahead."""
    if data.prefetch_factor:
        raise ConfigError(
            f"data.prefetch_factor is {data.prefetch_factor}, and a problem is read by its number when its episode "
            "begins, so nothing is loaded ahead",
            "leave data.prefetch_factor out; it is for supervised training (embodied.sft)",
        )


def _check_options(config: Config) -> None:
    """Refuses arguments of data sets that no env gives to one."""
    given, sides = config.data.options, [own_of(config, side) for side in SIDES]
    if given and not any(given.items() <= (side.get("data_args") or {}).items() for side in sides):
        raise ConfigError(
            f"data.options are {given}, and no data set of yours gets them",
            "name one in data.train_data_paths or data.custom_cls, or set env.train.data_args and env.eval.data_args",
        )
