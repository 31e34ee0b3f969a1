"""Keys of ``env.train`` on the command line that ``env.eval`` follows, with their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of
from embodied.schema.keys.paths import MISSING, at
from embodied.schema.rules.sides.given import keys_of

TRAIN, EVAL = "env.train.", "env.eval."
_PROBLEMS = "evaluations have problems of their own"
_COLUMNS = "the files of evaluations have columns of their own"
_MANY = "how many problems training has"
_ORDER = "order and seed of training's starts"
_SLOTS = "how the slots of one side are run"
_LIMIT = "evaluations have the benchmark's own limit"
_REWARD = "evaluations report success, whatever training is paid for"

OWN_OF_A_SIDE: Mapping[str, str] = {
    "data": _PROBLEMS, "subset": _PROBLEMS, "split": _PROBLEMS, "revision": _PROBLEMS, "part": _PROBLEMS,
    "weights": _PROBLEMS, "token_limit": _PROBLEMS, "filter_overlong_prompts": _PROBLEMS,
    "prompt_key": _COLUMNS, "answer_key": _COLUMNS, "messages_key": _COLUMNS, "data_source_key": _COLUMNS,
    "image_key": _COLUMNS, "count": _MANY, "data_args.count": _MANY, "max_samples": _MANY,
    "data_args.seed": _ORDER, "dataset_seed": _ORDER, "shuffle": _ORDER, "shuffle_seed": _ORDER, "seed": _ORDER,
    "use_fixed_reset_state_ids": _ORDER,
    "total_num_envs": _SLOTS, "auto_reset": _SLOTS, "max_cached_simulators": _SLOTS, "enable_dataset_cache": _SLOTS,
    "video_cfg": "what is recorded of one side", "perturb": "what disturbs the episodes of one side",
    "max_episode_steps": _LIMIT, "ignore_terminations": _LIMIT,
    "reward_mode": _REWARD, "reward_coef": _REWARD, "use_rel_reward": _REWARD,
    "_target_": "another class has other keys",
}  # fmt: skip
"""Key of ``env.train`` → why ``env.eval`` has a value of its own."""
ALONGSIDE: Mapping[str, str] = {"data_args": "data"}
"""Key → another one, with whose value alone it means the same on both sides."""


def followers(command_line: Iterable[str]) -> list[str]:
    """Lists the keys of ``env.eval`` that copy ``env.train``'s value from the command line (without ``env.train.``).
    Beside ``data.KEY``, which is of both sides, ``env.train.KEY`` is of one.

    Args:
        command_line: all keys on the command line, with dots.
    """
    command_line = list(command_line)
    evaluation = [key for key in command_line if key == "env.eval" or key.startswith(EVAL)]
    wanted = [key.removeprefix(TRAIN) for key in command_line if key.startswith(TRAIN)]
    wanted = [key for key in wanted if f"data.{key}" not in command_line]
    return [key for key in wanted if _describes(key) and not any(_touches(EVAL + key, one) for one in evaluation)]


def followed(mapping: Mapping[str, Any], before: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Returns the values that ``env.eval`` copies from ``env.train``, by dotted key.

    Args:
        mapping: the configuration.
        before: the same without these keys of the command line. A key in which the two sides differ there was set on
            purpose, by a file of an experiment or of the env.
        keys: of :func:`followers`.
    """
    train, evaluation = mapping["env"]["train"], mapping["env"]["eval"]
    if train.get("_target_") != evaluation.get("_target_"):
        return {}
    sides = before["env"]["train"], before["env"]["eval"]
    alone = {key for key, other in ALONGSIDE.items() if train.get(other) != evaluation.get(other)}
    same = [key for key in keys if key.partition(".")[0] not in alone and at(sides[0], key) == at(sides[1], key)]
    found = {key: at(train, key) for key in same if key.partition(".")[0] in sides[1] or _takes(evaluation, key)}
    return {EVAL + key: value for key, value in found.items() if value is not MISSING}


def followed_still(resolved: Mapping[str, Any], followed: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the copied keys, without ``env.eval.``, whose values are equal on both sides in the end: a protocol, or a
    reward of both sides, may have given evaluations another value."""
    sides, keys = resolved["env"], [key.removeprefix(EVAL) for key in followed]
    return tuple(sorted(key for key in keys if at(sides["train"], key) == at(sides["eval"], key)))


def without_keys(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Drops the overrides that set these keys of ``env.train``."""
    told = {TRAIN + key for key in keys}
    return [one for one in overrides if told.isdisjoint(keys_of([one]))]


def _takes(side: Mapping[str, Any], key: str) -> bool:
    """Returns whether a side's class has such an argument. A misspelt key is an error of the side that sets it."""
    try:
        return key.partition(".")[0] in arguments_of(side["_target_"], f"{EVAL}_target_")
    except (ConfigError, KeyError):
        return False


def _describes(key: str) -> bool:
    """Returns whether a key describes the task."""
    return not any(key == own or key.startswith(f"{own}.") for own in OWN_OF_A_SIDE)


def _touches(key: str, other: str) -> bool:
    """Returns whether two dotted keys are the same, or one stands in the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
