"""Sections of a run's configuration that its checkpoints bring: both sides of its env, protocol, sampling, seed.

``config.yaml`` of the run has them, and an export keeps them in its ``embodied.json``. Both are from outside: every
value is held against the schema before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from embodied.errors import DamagedCheckpointError
from embodied.schema.compose.key_errors import wrong_values
from embodied.schema.keys.paths import SIDES
from embodied.schema.keys.sections.actor import ModelConfig
from embodied.schema.keys.sections.algorithm import EvalSamplingConfig
from embodied.schema.keys.sections.env import EnvEvalConfig, EnvTrainConfig
from embodied.schema.keys.sections.protocol import ProtocolConfig
from embodied.schema.keys.sections.task_type import TASK_TYPES
from embodied.schema.rules.protocols import HELD_OUT

CONFIG = "config.yaml"
NOTED = "configured"
"""Key under ``source`` of an exported folder's ``embodied.json``."""
OWN_OF_A_COMMAND = ("total_num_envs", "video_cfg", "perturb", "python")
"""Keys of a side that say how a command runs its slots, which no checkpoint brings."""
SET_BY_PROTOCOLS = ("env.eval.", "env.train.", "algorithm.val_sampling_params.")
"""Beginnings of the keys that a protocol from outside may set."""

_SIDES: Mapping[str, type[BaseModel]] = {"train": EnvTrainConfig, "eval": EnvEvalConfig}
_VIDEO = {"video_cfg": {"video_base_dir": "videos"}}  # the schema wants one


def read_config(run: Path) -> dict[str, Any] | None:
    """Returns the sections of a run; None if it has no configuration.

    Raises:
        DamagedCheckpointError: the file cannot be read, or has no such sections.
    """
    file = run / CONFIG
    if not file.is_file():
        return None
    try:
        return noted(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(
            f"{file} is damaged: it is no configuration of a run ({type(error).__name__}: {error})",
            "copy the run's folder again, or copy the checkpoint's folder alone: it brings its model, and env=NAME "
            "names the env",
        ) from error


def model_of(run: Path) -> dict[str, Any] | None:
    """Returns the section ``actor.model`` of a run, for checkpoints that do not say what builds their policy."""
    config = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))
    model = config.get("actor", {}).get("model")
    return dict(model) if isinstance(model, Mapping) else None


def of_env(side: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Returns sections that say of a run its env alone: all else has its defaults."""
    sampling = EvalSamplingConfig().model_dump(by_alias=True, mode="json")
    return {
        "env": {name: dict(side) for name in SIDES},
        "protocol": ProtocolConfig().model_dump(mode="json"),
        "algorithm": {"val_sampling_params": sampling, "val_group_size": 1},
        "runner": {"seed": seed, "task_type": "embodied"},
    }


def noted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of a whole configuration.

    Raises:
        KeyError, TypeError, AttributeError: it has no such sections.
    """
    runner, algorithm = config["runner"], config["algorithm"]
    sides = {side: dict(config["env"][side]) for side in SIDES}
    return {
        "env": {
            name: {key: value for key, value in side.items() if key not in OWN_OF_A_COMMAND}
            for name, side in sides.items()
        },
        "protocol": dict(config.get("protocol") or {}),
        "algorithm": {
            "val_sampling_params": dict(algorithm["val_sampling_params"]),
            "val_group_size": algorithm.get("val_group_size", 1),
        },
        "runner": {"seed": runner["seed"], "task_type": runner["task_type"]},
    }  # fmt: skip


def check_sections(found: Mapping[str, Any], file: Path) -> None:
    """Holds the sections of a run against the schema.

    Raises:
        DamagedCheckpointError: values are not as the schema has them; it names the file and all of them.
    """
    protocol, sampling = _part(found, "protocol", file), _part(found, "algorithm", file)
    wrong = [
        line for name, side in _part(found, "env", file).items()
        for line in _wrong(_SIDES[name], {**side, **_VIDEO}, f"env.{name}")
    ]  # fmt: skip
    wrong += _wrong(ProtocolConfig, protocol, "protocol")
    drawn = sampling.get("val_sampling_params", {})
    wrong += _wrong(EvalSamplingConfig, drawn, "algorithm.val_sampling_params")
    runner = _part(found, "runner", file)
    for key, good in (("seed", _whole), ("task_type", TASK_TYPES.__contains__)):
        if not good(runner.get(key)):
            wrong.append(f"runner.{key} = {runner.get(key)!r}")
    if not _whole(sampling.get("val_group_size")):
        wrong.append(f"algorithm.val_group_size = {sampling.get('val_group_size')!r}")
    wrong += [f"protocol.sets has {key}" for key in protocol.get("sets", {}) if not _may_set(key)]
    refuse(wrong, file, "env=NAME and protocol=NAME name others, which are then used in their place")


def check_model(model: Mapping[str, Any], file: Path) -> None:
    """Holds a section ``actor.model`` against the schema. Raises :class:`DamagedCheckpointError`."""
    refuse(_wrong(ModelConfig, model, "actor.model"), file, "name the model of its run: model=NAME, actor.model.…")


def refuse(wrong: list[str], file: Path, otherwise: str) -> None:
    """Raises :class:`DamagedCheckpointError` with all that is wrong in a file, if anything is."""
    if wrong:
        lines = "\n".join(f"  {line}" for line in wrong)
        raise DamagedCheckpointError(
            f"{file} holds values that this version does not take:\n{lines}",
            f"use the version of embodied that wrote it; or, if it is whole, {otherwise}",
        )


def _part(found: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    part = found.get(name)
    if not isinstance(part, Mapping) or (name == "env" and set(part) != set(SIDES)):
        raise DamagedCheckpointError(f"{file} is damaged: '{name}' is {part!r:.80}", "copy it again")
    return part


def _wrong(kind: type[BaseModel], values: Any, key: str) -> list[str]:
    try:
        kind.model_validate(values)
    except ValidationError as error:
        return [one.line for one in wrong_values(error.errors(include_url=False), kind, values, key)]
    return []


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _may_set(key: Any) -> bool:
    return isinstance(key, str) and (key.startswith(SET_BY_PROTOCOLS) or key == HELD_OUT)
