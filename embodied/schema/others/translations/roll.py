"""Rules of ROLL's keys."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from embodied.schema.others.counts import count
from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, Unknown, lag_within, number_of, only_if
from embodied.schema.others.values import translated

TRAIN = "actor_train."
ARGS = TRAIN + "training_args."
SPLIT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
"""Degrees by which devices share one copy of the model."""
_PLUS = "reinforce_plus_plus"
RETURNS = {
    (None, None, False): "raw", (None, None, True): _PLUS,
    ("batch", "batch", True): _PLUS, ("batch", None, True): _PLUS,
    ("group", None, False): "dr_grpo", ("group", None, True): f"{_PLUS}_baseline",
    ("group", "group", False): "grpo", ("group", "group", True): "grpo",
}  # fmt: skip
"""What ROLL's ``reinforce`` is, by the mean that is taken from rewards, the deviation that divides them, and whether
advantages are whitened."""


def _on(value: Any) -> bool:
    return value in (True, "True", "true")


def estimator(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the advantage; for ``reinforce`` it depends on how rewards are normalised."""
    if str(value) != "reinforce" or isinstance(get, Unknown):
        return Translation(translated(row.ours[0], value), "renamed")
    mean, std, whitened = get("norm_mean_type"), get("norm_std_type"), _on(get("whiten_advantages"))
    name = RETURNS.get((mean, std, whitened))
    told = f"rewards less the mean of {mean}, divided by the deviation of {std}, whitened: {whitened}"
    if name is None:
        return Translation({row.ours[0]: "reinforce"}, "derived", told)
    return Translation({row.ours[0]: name}, "derived", told)


def normalised(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates how rewards are normalised; ``adv_estimator`` says it here."""
    if value is None or str(get("adv_estimator")) in ("reinforce", "grpo"):
        return Translation(how="nothing", why="adv_estimator says it")
    return Translation(how="refused", why=f"rewards are not normalised by {value} here with this adv_estimator")


def reward_clip(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the clip of rewards; with GRPO they are normalised first, and none of n is larger than √n."""
    number, group = number_of(value), number_of(get("num_return_sequences_in_group")) or 1
    if not number:
        return Translation(how="nothing", why="nothing is set")
    if str(get("adv_estimator")) == "grpo" and number >= sqrt(group):
        return Translation(how="nothing", why=f"none of {group:g} normalised rewards is beyond it")
    if str(get("adv_estimator")) == "grpo":
        return Translation(
            how="refused", why="normalised rewards are not clipped here; algorithm.advantage_clip_… is near it"
        )
    return Translation({"reward.clip_min": -number, "reward.clip_max": number}, "renamed")


def kl_kind(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the estimate of the KL in the reward; in the loss it is always k3."""
    if not isinstance(get, Unknown) and not _on(get("add_token_level_kl")):
        return Translation(how="nothing", why="it is for the KL in the reward; that in the loss is k3, as here")
    return Translation(translated(row.ours[0], value), "renamed")


def adaptive(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the KL's target and horizon, which also switch its adaptive weight on."""
    if value is None or not _on(get("add_token_level_kl")):
        return Translation(how="nothing", why="the KL's weight is fixed")
    return Translation({row.ours[0]: value, "algorithm.kl_ctrl.type": "adaptive"}, "derived")


def difficulty(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the difficulty mask: groups whose mean score is beyond the bounds leave the loss."""
    if row.key == "difficulty_mask":
        return only_if(_on(value), {row.ours[0]: True}, "it is off")
    on = isinstance(get, Unknown) or _on(get("difficulty_mask"))
    return (
        Translation({row.ours[0]: value}, "renamed") if on else Translation(how="nothing", why="difficulty_mask is off")
    )


def accumulated(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates gradient accumulation: records of a step = passes · records of one · copies of the model."""
    micro, devices = number_of(get(ARGS + "per_device_train_batch_size")), get(TRAIN + "device_mapping")
    passes, why = number_of(value), "gradient_accumulation_steps · per_device_train_batch_size · copies of the model"
    if micro is None or passes is None:
        return Translation(how="derived", why=why)
    config = TRAIN + "strategy_args.strategy_config."
    split = [number_of(get(config + name)) or 1 for name in SPLIT]
    split.append(number_of(get(TRAIN + "model_args.ulysses_size")) or 1)
    shared = int(split[0] * split[1] * split[2] * split[3])
    copies = max(1, count(devices) // max(1, shared))
    told = f"{passes:g} passes · {micro:g} records · {copies} copies of the model"
    return Translation({row.ours[0]: int(passes * micro * copies)}, "derived", told)


def warmup(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the warm-up from optimizer steps into iterations."""
    steps = number_of(value)
    if not steps or steps < 0:
        return Translation({row.ours[0]: 0} if steps == 0 else {}, "renamed" if steps == 0 else "nothing")
    batch = accumulated(row, get(ARGS + "gradient_accumulation_steps"), get).settings.get(row.ours[0])
    starts, group = number_of(get("rollout_batch_size")), number_of(get("num_return_sequences_in_group"))
    if isinstance(get, Unknown) or not (batch and starts and group):
        return Translation({row.ours[0]: value}, "renamed")
    each = max(1.0, starts * group / batch) * (number_of(get("ppo_epochs")) or 1)
    return Translation(
        {row.ours[0]: round(steps / each, 4)}, "derived", f"{steps:g} optimizer steps / {each:g} an iteration"
    )


def staleness(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the largest age of an answer in iterations; only whole numbers are known here."""
    number = number_of(value)
    if not number:
        return Translation(how="nothing", why="it is off")
    return lag_within(row, int(number) if number == int(number) else value)


def adapters(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the rank of adapters, which also switches them on."""
    rank = int(number_of(value) or 0)
    return Translation({"actor.model.is_lora": rank > 0, **({row.ours[0]: rank} if rank else {})}, "derived")


def targets(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the names of the layers that get adapters."""
    names = str(value).split(",")
    return Translation({row.ours[0]: value if len(names) == 1 else [name.strip() for name in names]}, "renamed")


RULES: Mapping[str | tuple[str, str], Rule] = {
    ("roll", "adv_estimator"): estimator,
    ("roll", "norm_mean_type"): normalised, ("roll", "norm_std_type"): normalised,
    ("roll", "reward_clip"): reward_clip, ("roll", "kl_penalty"): kl_kind,
    ("roll", "target_kl"): adaptive, ("roll", "kl_horizon"): adaptive,
    ("roll", "difficulty_mask"): difficulty, ("roll", "difficulty_low_threshold"): difficulty,
    ("roll", "difficulty_high_threshold"): difficulty,
    ("roll", ARGS + "gradient_accumulation_steps"): accumulated, ("roll", ARGS + "warmup_steps"): warmup,
    ("roll", "async_generation_ratio"): staleness,
    ("roll", TRAIN + "model_args.lora_rank"): adapters, ("roll", TRAIN + "model_args.lora_target"): targets,
}  # fmt: skip
