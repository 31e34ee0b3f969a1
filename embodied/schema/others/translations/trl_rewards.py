"""Rules of TRL's rewards: its own functions, functions of the user, and reward models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Translation, Unknown, number_of

THOUGHT = r"\A<think>(?!.*<think>).*?</think>"
"""What ``think_format_reward`` looks for."""
OVERLONG = "get_soft_overlong_punishment"
OF_SCRIPT = {"max_completion_len": 1280, "soft_punish_cache": 256}
"""What ``trl grpo`` gives to :data:`OVERLONG`."""


def functions(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the functions that judge answers into verifiers, whose weighted sum is the reward."""
    if isinstance(get, Unknown):
        return Translation(how="derived", why="a list of verifiers: {name: custom, path: rewards.py, function: NAME}")
    given = list(value) if isinstance(value, list | tuple) else [value] if value else []
    weights = list(get("reward_weights") or [1.0] * len(given))
    if len(weights) != len(given):
        return Translation(how="refused", why=f"{len(given)} functions, and {len(weights)} weights")
    settings: dict[str, Any] = {}
    verifiers = []
    for one, weight in zip(given, weights, strict=True):
        name = str(one.get("name") if isinstance(one, Mapping) else one).removeprefix("trl.rewards.")
        if name == OVERLONG:
            penalty = _penalty(one if isinstance(one, Mapping) else {}, weight, get)
            if penalty is None:
                return Translation(how="refused", why=f"{OVERLONG} ends here at max_completion_length alone")
            settings |= penalty
            continue
        verifier = _verifier(name, one)
        if verifier is None:
            return Translation(how="refused", why=f"there is no {name} here: write it as a function of yours (custom)")
        verifiers.append({**verifier, **({"weight": weight} if weight != 1 else {})})
    named = [one["name"] for one in verifiers]
    if verifiers:
        dense = {f"env.{side}.reward_mode": "dense" for side in ("train", "eval")}
        column = "solution" if "math" in named else None
        settings |= {row.ours[0]: verifiers, **dense, "data.answer_key": column}
    return Translation(settings, "derived", "" if named.count("custom") == len(named) else "the same of ours")


def _verifier(name: str, given: Any) -> dict[str, Any] | None:
    """The verifier of one function: of TRL's own ones, or of the user's, as file and function."""
    if isinstance(given, Mapping):
        path = given.get("path")
        return {"name": "custom", "path": path, "function": given.get("function")} if path else None
    if name == "accuracy_reward":
        return {"name": "math"}
    if name == "think_format_reward":
        return {"name": "format", "pattern": THOUGHT}
    module, _, function = name.rpartition(".")
    return {"name": "custom", "path": f"{module.replace('.', '/')}.py", "function": function} if module else None


def _penalty(given: Mapping[str, Any], weight: float, get: Lookup) -> dict[str, Any] | None:
    """The penalty of long answers; None if it does not end at the longest answer."""
    sizes = {**OF_SCRIPT, **{name: given[name] for name in OF_SCRIPT if name in given}}
    if number_of(get("max_completion_length")) != sizes["max_completion_len"]:
        return None
    start = "reward.overlong_penalty."
    return {f"{start}enable": True, f"{start}buffer_length": sizes["soft_punish_cache"], f"{start}factor": weight}


def model(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a reward model, whose score is added to the reward."""
    if not value:
        return Translation(how="nothing", why="nothing is set")
    alone = {} if isinstance(get, Unknown) or get("reward_funcs") else {"env.train.reward_coef": 0.0}
    return Translation({row.ours[0]: value, "reward.use_reward_model": True, **alone}, "derived")
