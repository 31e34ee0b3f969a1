"""Warns about keys of other systems that were set and change nothing here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config, defaults
from embodied.schema.keys.paths import MISSING, SIDES, at, own_of
from embodied.schema.others.tables import column
from embodied.schema.rules.verifier_prompts import hands_on

OF_TOKENS: Mapping[str, tuple[str, str]] = {
    "actor.tokenizer.trust_remote_code": (
        "actor.model.tokenizer_trust_remote_code", "this model needs no code of a tokenizer, and runs none",
    ),
    "actor.tokenizer.padding_side": (
        "actor.model.padding_side", "this model's tokenizer says itself on which side it fills up",
    ),
    "actor.sequence_packing": ("actor.model.sequence_packing", "this model lays no texts end to end"),
}  # fmt: skip
"""Key → the key of a model that it is the default of, and what is said where a model has no such key: others have it in
files for each kind of model."""


def check_critic(config: Config) -> None:
    """Raises :class:`ConfigError` if a value function is asked for that nothing learns, or refused that is learned."""
    learns, wanted = config.algorithm.adv_type == "gae", config.critic.use_critic_model
    if wanted is not None and wanted != learns:
        raise ConfigError(
            f"critic.use_critic_model is {str(wanted).lower()}, and algorithm.adv_type {config.algorithm.adv_type} "
            f"{'learns a' if learns else 'uses no'} value function",
            "set algorithm.adv_type=gae (algorithm=ppo) for a value function, another one for none; or leave "
            "critic.use_critic_model out",
        )


def notes(config: Config) -> list[str]:
    """Returns warnings about keys that are set and have no effect, for the start of a run."""
    everything, usual = config.model_dump(by_alias=True), defaults()
    lines = [
        f"{key} {json.dumps(at(everything, key))}: {note}"
        for key, note in column("no_effect").items()
        if at(everything, key) != at(usual, key)
    ]
    own = config.actor.model.model_extra or {}
    if own.get("low_cpu_mem_usage") is False:
        lines.append("actor.model.low_cpu_mem_usage false: it permits a second copy of the weights, and none is made")
    name = config.rollout.group_name
    if config.rollout.backend == "native" and name != at(usual, "rollout.group_name"):
        lines.append(f"rollout.group_name {name}: it is the name of an engine's log, and no engine runs")
    lines += _of_compiled_layers(config)
    native = config.rollout.backend == "native"
    if config.rollout.validate_weight and native and config.cluster.component_placement is None:
        lines.append(
            "rollout.validate_weight true: the network that learns is the one that acts, and no weights travel"
        )
    elif config.rollout.validate_weight and not native and config.rollout.validate_save_dir is None:
        lines.append(
            "rollout.validate_weight true: each change of an engine's weights is compared anyway; "
            "rollout.validate_save_dir=FOLDER keeps what was compared"
        )
    if not config.actor.sequence_packing and at(everything, OF_TOKENS["actor.sequence_packing"][0]) is not MISSING:
        lines.append("actor.sequence_packing false: texts are filled up; true is faster, and the same up to rounding")
    if not config.data.return_raw_chat and not any(hands_on(own_of(config, side).get("verifier")) for side in SIDES):
        lines.append("data.return_raw_chat false: no verifier here hands prompts to a function of yours or a service")
    reads_files = any("enable_dataset_cache" in own_of(config, side) for side in SIDES)
    lines += [
        f"{key} {json.dumps(given)}: {why}"
        for key, (target, why) in OF_TOKENS.items()
        if (given := at(everything, key)) != at(usual, key) and at(everything, target) is MISSING
    ]
    image_key = config.data.image_key
    if image_key is not None and all(own_of(config, side).get("image_key") != image_key for side in SIDES):
        lines.append(f"data.image_key {json.dumps(image_key)}: no env here reads a column of pictures")
    if not config.data.enable_dataset_cache and not reads_files and not config.runner.task.supervised:
        lines.append("data.enable_dataset_cache false: no env here reads files of problems")
    return lines


def _of_compiled_layers(config: Config) -> Iterator[str]:
    own, rows = config.actor.model.model_extra or {}, config.rollout.torch_compile_max_bs
    learns = bool(own.get("torch_compile"))
    acts = learns if own.get("torch_compile_acting") is None else bool(own["torch_compile_acting"])
    if rows is not None and not acts and not learns:
        yield f"rollout.torch_compile_max_bs {rows}: no layer is compiled (actor.model.torch_compile)"
    if acts != learns and not (config.runner.only_eval or config.runner.task.supervised):
        yield (
            f"rollout.use_torch_compile {json.dumps(acts)}, and actor.model.torch_compile {json.dumps(learns)}: acting "
            "and learning round differently; train/logprob_gap shows how much"
        )
