"""Keys of other systems for what is always so here. Another value is refused with the reason, and never ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from embodied.errors import ConfigError
from embodied.schema.config import Config, defaults
from embodied.schema.links import SIDES, at, own_of


class Fixed(NamedTuple):
    """Why a key has no other value than its default."""

    why: str
    also: tuple[Any, ...] = ()  # defaults of other systems, which ask for nothing that is not so
    note: str = ""  # what a run says of those


FIXED: Mapping[str, Fixed] = {
    "data.image_key": Fixed("problems are texts, without pictures", ("images",), "no column of pictures is read"),
    "data.return_raw_chat": Fixed(
        "a verifier belongs to the env, which knows the prompt as the data has it", (False,),
        "a verifier that is a function of yours is given the prompt as the data has it all the same",
    ),
    "data.return_full_prompt": Fixed("a verifier belongs to the env, and only the policy knows the chat template"),
    "actor.sequence_packing": Fixed(
        "texts are always computed end to end, without padding", (False,),
        "texts are computed end to end all the same, without padding, which changes no result",
    ),
    "actor.tokenizer.use_fast": Fixed(
        "tokenizers are those of the package tokenizers", (False,),
        "the tokenizer is that of the package tokenizers all the same",
    ),
    "actor.tokenizer.padding_side": Fixed(
        "texts are computed end to end, and rows of prompts are filled up on the right, which changes no result",
        ("left",), "rows of prompts are filled up on the right all the same, which changes no result",
    ),
}  # fmt: skip
"""Key → why it is always as it is by default."""


def check_fixed(config: Config) -> None:
    """Refuses other values. Raises :class:`ConfigError` with the reason."""
    everything, usual = config.model_dump(by_alias=True), defaults()
    for key, fixed in FIXED.items():
        given, only = at(everything, key), at(usual, key)
        if given != only and given not in fixed.also:
            its = told(only).strip('"')
            raise ConfigError(
                f"{key} is {given!r}, and can only be {its}: {fixed.why}", f"leave {key} out, or set it to {its}"
            )
    learns, wanted = config.algorithm.adv_type == "gae", config.critic.use_critic_model
    if wanted is not None and wanted != learns:
        raise ConfigError(
            f"critic.use_critic_model is {str(wanted).lower()}, and algorithm.adv_type {config.algorithm.adv_type} "
            f"{'learns a' if learns else 'uses no'} value function",
            "set algorithm.adv_type=gae (algorithm=ppo) for a value function, another one for none; or leave "
            "critic.use_critic_model out",
        )


def notes(config: Config) -> list[str]:
    """Returns lines about values that were taken though they change nothing, for a run to say at its start."""
    everything, usual = config.model_dump(by_alias=True), defaults()
    lines = [
        f"{key} {told(at(everything, key))}: {fixed.note}"
        for key, fixed in FIXED.items()
        if fixed.note and at(everything, key) != at(usual, key)
    ]
    name = config.rollout.group_name
    if config.rollout.backend == "native" and name != at(usual, "rollout.group_name"):
        lines.append(f"rollout.group_name {name}: it is the name of an engine's log, and no engine runs")
    reads_files = any("enable_dataset_cache" in own_of(config, side) for side in SIDES)
    if config.actor.tokenizer.trust_remote_code and "tokenizer_trust_remote_code" not in (
        config.actor.model.model_extra or {}
    ):
        lines.append("actor.tokenizer.trust_remote_code true: this model needs no code of a tokenizer, and runs none")
    if not config.data.enable_dataset_cache and not reads_files and config.runner.task_type != "sft":
        lines.append("data.enable_dataset_cache false: no env here reads files of problems")
    return lines


def told(value: Any) -> str:
    """Returns a value as a YAML file has it."""
    return json.dumps(value)
