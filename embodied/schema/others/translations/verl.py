"""Rules of verl's keys, and of SimpleVLA-RL's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, Unknown, betas, has, number_of, positive
from embodied.schema.others.values import translated

ACTOR = "actor_rollout_ref.actor."
ROBOT = ("data.task_suite_name", "actor_rollout_ref.model.vla")
"""Keys that SimpleVLA-RL has and verl has not."""
GRPO = ("grpo", "grpo_vectorized")
SAME = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
"""Estimator → another that gives the same numbers."""


def _of_actor(get: Lookup, key: str) -> Any:
    return get(ACTOR + key) if get(ACTOR + key) is not None else get(f"actor.{key}")


def _loss(get: Lookup) -> str:
    return str(_of_actor(get, "policy_loss.loss_mode") or "vanilla").lower()


def estimator(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the advantage; ``norm_adv_by_std_in_grpo`` decides between GRPO and Dr. GRPO."""
    name = str(value).lower()
    if name in GRPO and get("algorithm.norm_adv_by_std_in_grpo") in (False, "False", "false"):
        return Translation({row.ours[0]: "dr_grpo"}, "derived", "norm_adv_by_std_in_grpo is off")
    return Translation(translated(row.ours[0], SAME.get(name, value)), "renamed")


def by_std(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch between GRPO and Dr. GRPO."""
    off = value in (False, "False", "false")
    if isinstance(get, Unknown):
        return Translation({row.ours[0]: "dr_grpo"} if off else {}, "derived")
    of_groups = str(get("algorithm.adv_estimator")).lower() in GRPO
    return Translation(how="nothing", why="adv_estimator says it" if of_groups else "it is for adv_estimator grpo")


def dual_clip(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the dual clip, which only verl's plain loss has."""
    if value is None or _loss(get) != "vanilla":
        return Translation(
            how="nothing", why=f"loss_mode {_loss(get)} has none" if value is not None else "nothing is set"
        )
    return Translation({row.ours[0]: value}, "renamed")


def aggregated(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates how the loss is aggregated; with ``loss_mode=gspo`` verl always takes seq-mean-token-mean."""
    if _loss(get) == "gspo":
        return Translation({row.ours[0]: "seq-mean-token-mean"}, "derived", "loss_mode gspo always has this one")
    return Translation(translated(row.ours[0], value), "renamed")


def critic(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a key that counts only with a critic."""
    if value is None or not (isinstance(get, Unknown) or get("algorithm.adv_estimator") in ("gae", None)):
        return Translation(how="nothing", why="adv_estimator has no critic")
    return Translation({row.ours[0]: value}, "renamed")


def kl_type(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the estimate of the KL loss; a ``+`` at its end, another estimate's gradient, is refused."""
    if not isinstance(get, Unknown) and not _of_actor(get, "use_kl_loss"):
        return Translation(how="nothing", why="use_kl_loss is off")
    if str(value).endswith("+"):
        return Translation(how="refused", why="the gradient is here that of the estimate itself, without the +")
    return Translation(translated(row.ours[0], value), "renamed")


def shuffled(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch that shuffles an iteration's records."""
    return Translation({row.ours[0]: value in (True, "True", "true")}, "renamed")


def family(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates SimpleVLA-RL's name of the model; dropped where ``actor_rollout_ref.model.vla`` is set."""
    if has(get, "actor_rollout_ref.model.vla"):
        return Translation(how="nothing", why="actor_rollout_ref.model.vla says it")
    return Translation(translated(row.ours[0], value), "renamed")


def of_texts(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a length of prompts or answers; dropped for robots, whose files have it, too."""
    if any(has(get, key) for key in ROBOT):
        return Translation(how="nothing", why="the tokens of a chunk follow from the model")
    return Translation(translated(row.ours[0], value), "renamed")


def low(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the lower side of the ratio's clip; 1 or more is none, because ratios are above 0."""
    number = number_of(value)
    if number is not None and number >= 1:
        return Translation({row.ours[0]: 0.999}, "derived", "no lower clip; 0.999 is nearest to that")
    return (
        Translation({row.ours[0]: value}, "renamed")
        if value is not None
        else Translation(how="nothing", why="nothing is set")
    )


def example(row: Row, value: Any, get: Lookup) -> Translation:
    """Explains the total length of a supervised example, which is two keys here: of the prompt and of the answer."""
    both = "data.max_prompt_length and algorithm.sampling_params.max_new_tokens"
    return Translation({}, "extra", f"prompt and answer have a length each here: share the {value} out to {both}")


RULES: Mapping[str | tuple[str, str], Rule] = {
    ("verl", "algorithm.adv_estimator"): estimator, ("verl", "algorithm.norm_adv_by_std_in_grpo"): by_std,
    ("verl", ACTOR + "clip_ratio_c"): dual_clip, ("verl", ACTOR + "loss_agg_mode"): aggregated,
    ("verl", ACTOR + "kl_loss_type"): kl_type,
    ("verl", "critic.optim.lr"): critic, ("verl", "critic.cliprange_value"): critic,
    ("verl", ACTOR + "optim.betas"): betas, ("verl", "optim.betas"): betas,
    ("verl", "data.train_max_samples"): positive, ("verl", "data.val_max_samples"): positive,
    ("verl", ACTOR + "shuffle"): shuffled, ("verl", "data.max_length"): example,
    ("simplevla-rl", "actor_rollout_ref.rollout.model_family"): family,
    ("verl", "data.max_prompt_length"): of_texts, ("verl", "data.max_response_length"): of_texts,
    ("verl", "actor_rollout_ref.rollout.prompt_length"): of_texts,
    ("verl", "actor_rollout_ref.rollout.response_length"): of_texts, ("verl", ACTOR + "clip_ratio_low"): low,
}  # fmt: skip
