"""Derives keys from others: arguments of text envs from ``data.*`` and ``reward.*``, ``runner.max_steps`` and more.

A YAML file of a group refers to most of them (``prompt_key: ${data.prompt_key}`` in ``env/math.yaml``), and a value
that is given directly wins. Here stands what depends on the side of an env. That no key is without effect is checked in
``unused_keys.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of, load_target
from embodied.schema.keys.config import Config
from embodied.schema.keys.paths import SIDES, own_of
from embodied.schema.keys.sections.data import DataConfig
from embodied.schema.keys.sections.reward import RewardConfig, RewardType
from embodied.schema.rules.aliases import from_aliases
from embodied.schema.rules.derivation import Changes, Derivation
from embodied.schema.rules.verifier_prompts import with_prompts

COUNTER = "prompt_counter"
"""Name of the function, beside a model's ``_target_``, that makes a counter of prompts' tokens from those keys of the
model that it takes."""
IMAGE_SIZE = "image_size"
"""Name of the function there that is given ``model_path`` and says how many pixels a side of a picture has."""
GROUP = "algorithm.group_size"
PROMPT_BYTES, MOST_PROMPT_BYTES = 2048, 1 << 20
TOKEN_BYTES = 8  # bytes of prompt allowed a token; English text has about four
STATISTICS = "unnorm_key"
"""Key of a model, and name of the function there that says what ``auto`` means. It is given the task suite of the env,
and those keys of the model that it takes."""
OTHER_NAMES = {"single_choice": "choice", "boxed_math": "boxed"}
"""What Cosmos-RL calls some verifiers."""


def derived(config: Config, command_line: Sequence[str] = ()) -> Derivation:
    """Derives values that follow from other keys, each with the keys that it follows from.

    Args:
        command_line: keys that stand on the command line.

    Raises:
        ConfigError: two keys say the same.
    """
    found = from_aliases(config, command_line)
    runner, data = config.runner, config.data
    if config.algorithm.learner == "sac" and GROUP not in (*command_line, *found.values):
        found.add({GROUP: 1}, "algorithm.learner")  # an experiment's is for learners that compare returns
    if runner.max_steps >= 0:
        found.add({"runner.max_epochs": min(runner.max_epochs, runner.max_steps)}, "runner.max_steps")
    if data.val_rollout_batch_size is not None:
        slots = {"env.eval.total_num_envs": _slots_of_evaluation(config, command_line)}
        found.add(slots, "data.val_rollout_batch_size", "algorithm.val_group_size")
    if (config.actor.model.model_extra or {}).get(STATISTICS) == "auto":
        found.include(_statistics(config))
    for side in SIDES:
        found.include(_of_side(config, side, command_line), below=f"env.{side}.")
    _check_apart(config, found.values)
    if "data.test_size" in command_line:
        _check_test_size(config, found.values)
    if runner.task.by_rewards:
        _check_paths(config, found.values, command_line)
    return found


def _of_side(config: Config, side: str, given: Sequence[str]) -> Derivation:
    """Derives keyword arguments of a side's env."""
    found, own, data = Derivation(), own_of(config, side), config.data
    if not config.runner.task.supervised and "data" in own and own["data"] is None:
        alone = config.runner.only_eval and not data.train_data_paths  # the other side is not asked anything
        found.include(_problems(data, "eval" if alone else side, own))
    if not data.enable_dataset_cache and _takes(config, side, "enable_dataset_cache"):
        found.add({"enable_dataset_cache": False}, "data.enable_dataset_cache")
    if own.get("max_prompt_bytes", 0) is None:
        found.add({"max_prompt_bytes": _prompt_bytes(data)}, "data.max_prompt_length")
    if data.filter_overlong_prompts and own.get("filter_overlong_prompts") and own.get("token_limit", 0) is None:
        found.add(_token_limit(config), "data.filter_overlong_prompts", "actor.model.max_prompt_tokens")
    if own.get("image_key") is not None and own.get("image_size", 0) is None:
        found.add(_image_size(config), "actor.model.model_path")
    if "verifier" in own:
        found.include(_verifier(config.reward, side, own["verifier"], given))
        parts = with_prompts(config, found.values.get("verifier", own["verifier"]))
        asked = (*found.sources.get("verifier", ()), "data.return_raw_chat", "data.return_full_prompt")
        found.add({} if parts is None else {"verifier": parts}, *asked)
    return found


def _statistics(config: Config) -> Derivation:
    """The name of the dataset statistics that a model has for the task suite of its env; empty if it has no function
    that says it."""
    model, side = config.actor.model, "eval" if config.runner.only_eval else "train"
    named, own = f"{model.target.rpartition('.')[0]}.{STATISTICS}", dict(model.model_extra or {})
    found = Derivation()
    try:
        takes = arguments_of(named, "actor.model._target_").named
    except ConfigError:
        return found
    suite = own_of(config, side).get("task_suite_name")
    options = {name: value for name, value in own.items() if name in takes}
    name = load_target(named, "actor.model._target_")(suite, **options)
    found.add({f"actor.model.{STATISTICS}": name}, f"env.{side}.{'_target_' if suite is None else 'task_suite_name'}")
    return found


def _takes(config: Config, side: str, name: str) -> bool:
    """Returns whether the env of a side has such a keyword argument; one that cannot be imported has none."""
    target = getattr(config.env, side).target
    try:
        return name in arguments_of(target, f"env.{side}._target_").named
    except ConfigError:
        return False


def _slots_of_evaluation(config: Config, given: Sequence[str]) -> int:
    """Env slots that ``data.val_rollout_batch_size`` asks for. Refuses another number on the command line."""
    problems, own = config.data.val_rollout_batch_size or 0, config.env.eval.total_num_envs
    slots = problems * config.algorithm.val_group_size
    if "env.eval.total_num_envs" in given and own != slots:
        raise ConfigError(
            f"data.val_rollout_batch_size {problems} · val_group_size {config.algorithm.val_group_size} asks for "
            f"{slots} env slots, and env.eval.total_num_envs is {own}",
            "leave one of the two keys out",
        )
    return slots


def _check_test_size(config: Config, changes: Changes) -> None:
    """Refuses a share for evaluations that nobody takes."""
    data, sides = config.data, [(side, own_of(config, side)) for side in SIDES]
    parts = [changes.get(f"env.{side}.part", own.get("part", "all")) for side, own in sides]
    others = bool(data.val_data_paths or data.val_subset or data.val_split or data.val_revision)
    if parts == ["all", "all"] and (others or not config.runner.task.supervised):
        why = (
            "evaluations have problems of their own" if others else "no env here takes a share of files for evaluations"
        )
        raise ConfigError(
            f"data.test_size is {data.test_size:g}, and {why}",
            "leave data.test_size out, or have one source alone: data.train_data_paths",
        )


def _check_paths(config: Config, changes: Changes, given: Sequence[str]) -> None:
    """Refuses sources of problems that no env reads. ``env.train.data`` on the command line may win over them.
    Of an evaluation alone, these are the sources on the command line."""
    data = config.data
    read = [own_of(config, side).get("data") for side in SIDES]
    read += [changes.get(f"env.{side}.data") for side in SIDES]
    told: dict[str, Any] = {"data.train_data_paths": data.train_data_paths, "data.val_data_paths": data.val_data_paths}
    if data.custom_cls.path is not None:
        told = {"data.custom_cls.path": [custom_name(data)]}
    if config.runner.only_eval:  # an experiment's file may say what it has learned from: experiment=quickstart_sft
        told = {key: paths for key, paths in told.items() if key in given}
    for key, paths in told.items():
        if paths and paths not in read and not any(f"env.{side}.data" in given for side in SIDES):
            raise ConfigError(
                f"{key} is set, and the envs ({config.env.train.target}) take their problems from elsewhere",
                f"leave out {key}, or choose env=math without env.train.data and env.eval.data",
            )


def _check_apart(config: Config, changes: Changes) -> None:
    """Refuses problems of one side, given directly, where the other side has a share of the same files."""
    for side, other, part in (("train", "eval", "held_out"), ("eval", "train", "train")):
        own = own_of(config, side)
        if config.runner.only_eval or changes.get(f"env.{other}.part") != part or own.get("part") != "all":
            continue
        named = [own["data"]] if isinstance(own.get("data"), str) else own.get("data") or []
        both = {Path(path) for path in named} & {Path(path) for path in changes.get(f"env.{other}.data") or []}
        if both and all(own.get(name) == changes[f"env.{other}.{name}"] for name in ("subset", "split")):
            raise ConfigError(
                f"env.{side}.data has all problems of {', '.join(sorted(map(str, both)))}, and env.{other} has some of "
                "them: data.test_size of data.train_data_paths is for evaluations",
                f"leave env.{side}.data out, or set env.{side}.part={'train' if side == 'train' else 'held_out'}, or "
                "data.val_data_paths to other files",
            )


def _problems(data: DataConfig, side: str, own: Mapping[str, Any]) -> Derivation:
    """Problems of a side that names none itself."""
    of_paths, of_subset, of_split, of_revision = sources = [
        _source_of_problems(data, side, name) for name in ("data_paths", "subset", "split", "revision")
    ]
    paths, subset, split, revision = (getattr(data, name) for name in sources)
    others = data.val_data_paths or data.val_split or data.val_subset
    part = "all" if others else "held_out" if side == "eval" else "train"
    found = Derivation()
    found.add({"subset": subset}, f"data.{of_subset}")
    found.add({"split": split}, f"data.{of_split}")
    found.add({"revision": revision}, f"data.{of_revision}")
    found.add({"part": part}, "data.val_data_paths", "data.val_split", "data.val_subset")
    found.add({"test_size": data.test_size}, "data.test_size")
    if side == "eval" and data.validation_shuffle:
        found.add({"shuffle": True}, "data.validation_shuffle")
    if data.custom_cls.path is not None:
        arguments = {**data.options, **({"data_files": paths} if paths else {}), **(own.get("data_args") or {})}
        found.add({"data": [custom_name(data)]}, "data.custom_cls.path", "data.custom_cls.name")
        found.add({"data_args": arguments}, "data.options", f"data.{of_paths}")
        return found
    if data.options and any(":" in path for path in paths):
        found.add({"data_args": {**data.options, **(own.get("data_args") or {})}}, "data.options")
    found.add({"data": paths}, f"data.{of_paths}")
    return found if paths else Derivation()


def _source_of_problems(data: DataConfig, side: str, name: str) -> str:
    """The key of ``data`` that says something of a side's problems: evaluations may have files of their own, or another
    part of those of training."""
    own_part = (data.val_split or data.val_subset) and name != "data_paths" and getattr(data, f"val_{name}")
    return f"val_{name}" if side == "eval" and (data.val_data_paths or own_part) else f"train_{name}"


def custom_name(data: DataConfig) -> str:
    """Returns the name of a user's data set: ``file.py:Name``."""
    return f"{data.custom_cls.path}:{data.custom_cls.name}"


def _prompt_bytes(data: DataConfig) -> int:
    """Size limit of an observation's prompt in bytes: enough for ``data.max_prompt_length`` tokens."""
    return min(max(PROMPT_BYTES, TOKEN_BYTES * (data.max_prompt_length or 0)), MOST_PROMPT_BYTES)


def _token_limit(config: Config) -> Changes:
    """Token limit of a prompt, with the model's function that counts tokens; empty if the model has none."""
    model = config.actor.model
    counter, own = f"{model.target.rpartition('.')[0]}.{COUNTER}", dict(model.model_extra or {})
    try:
        takes = arguments_of(counter, "actor.model._target_").named
    except ConfigError:
        return {}
    limit = {
        "most": own["max_prompt_tokens"],
        "counter": counter,
        "options": {name: value for name, value in own.items() if name in takes},
        "workers": config.data.filter_overlong_prompts_workers,
    }
    return {"token_limit": limit}


def _image_size(config: Config) -> Changes:
    """The size in which the model reads pictures; nothing if it has no function that says it, or reads none."""
    model = config.actor.model
    try:
        tells = load_target(f"{model.target.rpartition('.')[0]}.{IMAGE_SIZE}", "actor.model._target_")
    except ConfigError:
        return {}
    size = tells((model.model_extra or {}).get("model_path"))
    return {} if size is None else {"image_size": size}


def _verifier(reward: RewardConfig, side: str, own: Any, given: Sequence[str]) -> Derivation:
    """The verifier that ``reward.*`` asks for."""
    asked = {
        "reward.reward_type": _named(reward.reward_type),
        "reward.custom_reward_function.path": _custom(reward),
        "reward.remote.enable": _remote(reward),
    }
    if side == "eval" and reward.val_reward_type is not None:
        asked = {"reward.val_reward_type": _named(reward.val_reward_type)}
    told = [key for key, parts in asked.items() if parts is not None]
    direct = [key for key in (f"env.{side}.verifier", f"env.{side}.reward_mode") if key in given]
    if len(told) > 1 or (told and direct):
        raise ConfigError(
            f"{' and '.join([*told, *direct])} each say what an answer is worth",
            "keep one of them; several verifiers with weights are env.train.verifier (docs/text.md)",
        )
    parts = asked[told[0]] if told else own
    common = {"scale": reward.reward_scale, "clip_min": reward.clip_min, "clip_max": reward.clip_max}
    common = {name: value for name, value in common.items() if value is not None}
    names = [{"scale": "reward.reward_scale"}.get(name, f"reward.{name}") for name in common]
    if common and not parts:
        named = " and ".join(names)
        raise ConfigError(f"{named} is set, and the env has a verifier of its own", "name one: reward.reward_type=…")
    if common:
        parts = [{**part, **common} for part in parts or []]
    found = Derivation()
    if told or common:
        found.add({"verifier": parts, "reward_mode": "dense"}, *told, *names)
    return found


def _named(kind: RewardType) -> list[Changes] | None:
    if kind is None:
        return None
    if isinstance(kind, dict):
        return [{"name": OTHER_NAMES.get(name, name), "weight": weight} for name, weight in kind.items()]
    names = [kind] if isinstance(kind, str) else kind
    return [{"name": OTHER_NAMES.get(name, name)} for name in names]


def _custom(reward: RewardConfig) -> list[Changes] | None:
    function = reward.custom_reward_function
    return None if function.path is None else [{"name": "custom", "path": function.path, "function": function.name}]


def _remote(reward: RewardConfig) -> list[Changes] | None:
    remote = reward.remote
    if not remote.enable:
        if remote.functions is not None:
            raise ConfigError("reward.remote.functions is set, and enable is false", "set reward.remote.enable=true")
        if remote.url is not None:
            raise ConfigError("reward.remote.url is set, and enable is false", "set reward.remote.enable=true")
        return None
    more = {} if remote.functions is None else {"functions": remote.functions}
    if remote.url is None:
        raise ConfigError("reward.remote.enable is true, and reward.remote.url is not set", "set reward.remote.url")
    return [{"name": "remote", "url": remote.url, "score_key": remote.score_key, "weight": remote.scale, **more}]
