"""Values that have another name in other systems than here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
"""Our key → its value. ``model`` and ``env`` are the groups of that name."""


def _loss(name: str, **more: Any) -> Settings:
    return {"algorithm.loss_type": name, **{f"algorithm.{key}": value for key, value in more.items()}}


_GRPO = _loss("ppo", adv_type="grpo")
_MATH = {"runner.task_type": "math", "env": "math"}
_GAE = {"algorithm.adv_type": "gae"}
_PRECISION = {
    "bfloat16": "bf16", "torch.bfloat16": "bf16", "bf16-true": "bf16", "float16": "fp16", "torch.float16": "fp16",
    "half": "fp16", "16": "fp16", "float32": "fp32", "torch.float32": "fp32", "float": "fp32", "32": "fp32",
}  # fmt: skip
PRECISIONS = (
    "actor.model.precision", "rollout.precision", "runner.weight_sync_dtype",
    "actor.fsdp_config.mixed_precision.param_dtype", "actor.fsdp_config.mixed_precision.reduce_dtype",
    "actor.fsdp_config.mixed_precision.buffer_dtype", "actor.fsdp_config.amp_autocast.precision",
)  # fmt: skip

MODELS = {
    "openvla_oft": "openvla_oft", "openvla-oft": "openvla_oft", "openvla": "openvla",
    **dict.fromkeys(
        ("qwen2.5", "qwen2", "qwen3", "qwen", "llama", "llama3", "mistral", "gemma", "gemma2", "gemma3"), "causal_lm"
    ),
}  # fmt: skip
"""Tag of an architecture → our group file (``model=NAME``)."""

ENVS = {
    "manikill_put_carrot_on_plate_in_scene": "maniskill_putonplate25",
    "maniskill_put_carrot_on_plate_in_scene": "maniskill_putonplate25",
    "maniskill_put_on_plate_in_scene_25_main": "maniskill_putonplate25",
    "math": "math",
}
"""Name of an env's file → our group file (``env=NAME``), where it is another."""

VALUES: Mapping[str, Mapping[str, Settings]] = {
    "algorithm.loss_type": {
        "grpo": _GRPO, "embodied_grpo": _GRPO, "math_grpo": _GRPO, "vanilla": _loss("ppo"),
        "dapo": {**_GRPO, "algorithm.dynamic_sampling": True},
        "actor": _loss("ppo"), "math_actor": _loss("ppo"), "embodied_ppo": {**_loss("ppo"), **_GAE},
        "actor_critic": {**_loss("ppo"), **_GAE}, "embodied_actor_critic": {**_loss("ppo"), **_GAE},
        "decoupled": _loss("tis"), "decoupled_actor_critic": {**_loss("tis"), **_GAE}, "gpg": _loss("reinforce"),
        "token": _loss("ppo"), "seq": _loss("gspo"), "pg": _loss("reinforce"),
    },
    "algorithm.adv_type": {
        "embodied_grpo": {"algorithm.adv_type": "grpo"}, "math_grpo": {"algorithm.adv_type": "grpo"},
        "grpo_dynamic": {"algorithm.adv_type": "grpo", "algorithm.dynamic_sampling": True},
        "dapo": {"algorithm.adv_type": "grpo", "algorithm.dynamic_sampling": True},
        "embodied_gae": _GAE, "ppo": _GAE, "embodied_ppo": _GAE,
        "reinpp": {"algorithm.adv_type": "reinforce_plus_plus"},
        "reinforce++": {"algorithm.adv_type": "reinforce_plus_plus"},
        "reinpp_baseline": {"algorithm.adv_type": "reinforce_plus_plus_baseline"},
    },
    "algorithm.kl_penalty_type": {
        "kl_penalty": {"algorithm.kl_penalty_type": "kl"}, "low_var": {"algorithm.kl_penalty_type": "low_var_kl"},
    },
    "actor.lr_sched.lr_decay_style": {
        "constant_with_warmup": {"actor.lr_sched.lr_decay_style": "constant"},
        "cosine_with_warmup": {"actor.lr_sched.lr_decay_style": "cosine"},
        "linear_with_warmup": {"actor.lr_sched.lr_decay_style": "linear"},
    },
    "actor.training_backend": {"fsdp2_train": {"actor.training_backend": "fsdp2"}},
    "actor.optim.optimizer": {"adam_w": {"actor.optim.optimizer": "adamw"}},
    "runner.task_type": {
        "reasoning": _MATH, "coding_online_rl": _MATH,
        "grpo": {}, "llm": {},
    },
    "rollout.backend": {
        name: {"rollout.backend": "native"}
        for name in ("huggingface", "hf", "transformers", "hf_infer", "fsdp2_infer", "vla")
    },
    **{key: {theirs: {key: ours} for theirs, ours in _PRECISION.items()} for key in PRECISIONS},
}  # fmt: skip
"""Our key → value of others → what says the same here."""


def translated(key: str, value: Any) -> Settings:
    """Returns what says a value of others here. A value that needs no other name comes back under the key.

    Args:
        key: ours.

    >>> translated("algorithm.loss_type", "embodied_grpo")
    {'algorithm.loss_type': 'ppo', 'algorithm.adv_type': 'grpo'}
    """
    value = number_or_text(value)
    if key == "algorithm.loss_agg_func" and isinstance(value, str):
        return {key: value.replace("_", "-")}
    if key.endswith("sampling_params.top_k") and isinstance(value, int):
        return {key: 0 if value >= 1_000_000 else max(value, 0)}
    if key.endswith("._target_"):
        return {"model" if key.startswith("actor.model") else "env": _group(key, value)}
    if key.endswith("_data_paths") and isinstance(value, str):
        return {key: [value]}
    named = VALUES.get(key, {})
    return named.get(str(value).lower(), {key: value}) if isinstance(value, str | int) else {key: value}


def _group(key: str, value: Any) -> Any:
    name = str(value).lower()
    return (MODELS if key.startswith("actor.model") else ENVS).get(name, name)


def number_or_text(value: Any) -> Any:
    """Returns the number or switch that a text stands for: YAML takes 1e-6 for a text, and Python's True is one in a
    script of the shell."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", value):
        return float(value)
    return {"True": True, "False": False, "None": None}.get(value, value) if isinstance(value, str) else value


def as_overrides(settings: Settings) -> str:
    """``algorithm.clip_ratio_low=0.2 algorithm.clip_ratio_high=0.2``, as one would type it."""
    return " ".join(f"{key}={typed(value)}" for key, value in settings.items())


def typed(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {typed(one)}" for key, one in value.items()) + "}"
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if _is_word(value) else str(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def other_name(key: str, value: Any) -> str:
    """What to give instead of a value that another system has, as the end of a sentence; empty if it has none.

    Args:
        key: ours.
    """
    said = translated(key, value)
    if said == {key: value} or not said:
        return ""
    return f" Other systems' '{value}' is {as_overrides(said)} here."
