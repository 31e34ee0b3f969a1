"""Values that have other names in other systems."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from embodied.schema.others.tables import column

Settings = Mapping[str, Any]
"""Our key → its value. ``model`` and ``env`` are the groups of that name."""


MODELS = {
    "openvla_oft": "openvla_oft", "openvla-oft": "openvla_oft", "openvla": "openvla",
    "pi0_5": "pi05",
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


@cache
def other_values() -> Mapping[str, Mapping[str, Settings]]:
    """Returns our settings for values of other systems, by our key and their value."""
    return {key: json.loads(cell) for key, cell in column("values").items()}


def translated(key: str, value: Any) -> Settings:
    """Returns our settings for a value of another system. A value that has no other name stays as it is.

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
    named = other_values().get(key, {})
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
    """Formats settings as command-line overrides: ``algorithm.clip_ratio_low=0.2 algorithm.clip_ratio_high=0.2``."""
    return " ".join(f"{key}={typed(value)}" for key, value in settings.items())


def typed(value: Any) -> str:
    """Formats a value as hydra's command line takes it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {typed(one)}" for key, one in value.items()) + "}"
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if _is_word(value) else str(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def other_name(key: str, value: Any) -> str:
    """Returns a hint at our name for a value of another system, as the end of a sentence; empty if there is none.

    Args:
        key: ours.
    """
    said = translated(key, value)
    if said == {key: value} or not said:
        return ""
    return f" Other systems' '{value}' is {as_overrides(said)} here."
