"""Arguments of :class:`~.env.ManiSkillEnv`, checked: parameters of the simulator, files, one instruction a task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied.errors import AssetsMissingError, ConfigError, UnknownKeyError, did_you_mean

from ..shared.arguments import check_name
from .cameras import Cameras
from .facts import INSTRUCTIONS, SimParams

_SIM_KEYS = ("id", "control_mode", "robot_uids", "obs_mode", "shader_pack", "sim_config", "task_kwargs")


def sim_params(init_params: Mapping[str, Any], task_file: str | None) -> SimParams:
    """Makes the simulator's arguments from ``env.train.init_params``. Raises ConfigError or UnknownKeyError, naming the
    key."""
    known = (*_SIM_KEYS, *Cameras.KEYS)
    for key in init_params:
        if key not in known:
            message = f"unknown key 'env.train.init_params.{key}'.{did_you_mean(key, known)}"
            hint = "arguments of the task's class go under env.train.init_params.task_kwargs"
            raise UnknownKeyError(message, f"remove it, or use one of: {', '.join(known)}; {hint}")
    if not isinstance(init_params.get("id"), str):
        raise ConfigError(
            f"env.train.init_params.id is {init_params.get('id')!r}, expected a task's name",
            "set env.train.init_params.id=PickCube-v1",
        )
    check_name(
        "obs_mode", init_params.get("obs_mode", "rgb"), ("rgb", "rgb+segmentation"), "env.train.init_params.obs_mode"
    )
    return SimParams(**{key: init_params[key] for key in _SIM_KEYS if key in init_params}, task_file=task_file)


def check_file(task: str, key: str, path: str | None) -> None:
    """Raises AssetsMissingError if the file that ``env.train.KEY`` names is not there; None passes."""
    if path is not None and not Path(path).is_file():
        raise AssetsMissingError(f"{task}: there is no file {path} (env.train.{key})", _how_to_get(task, key))


def _how_to_get(task: str, key: str) -> str:
    if not task.startswith("PutOnPlateInScene25"):
        return f"set env.train.{key} to a file that exists"
    return (
        "git clone https://github.com/RLinf/RLinf && "
        "hf download --repo-type dataset RLinf/maniskill_assets --local-dir RLinf/rlinf/envs/maniskill/assets && "
        "python -m mani_skill.utils.download_asset bridge_v2_real2sim -y && "
        "python -m mani_skill.utils.download_asset widowx250s -y, "
        "then set RLINF_PATH to the folder RLinf"
    )


def instructions(
    task: str, instruction: str | None, objects_file: str | None, objects: Sequence[int]
) -> tuple[str, ...]:
    """Returns the instructions of a task: the configured or known one, or one for each object."""
    if objects_file is None:
        text = instruction or INSTRUCTIONS.get(task)
        if text is None:
            raise ConfigError(
                f"no instruction is known for {task}",
                "set env.train.instruction and env.eval.instruction to a sentence",
            )
        return (text,)
    if instruction is None or "{name}" not in instruction:
        raise ConfigError(
            f"env.train.instruction is {instruction!r}, expected a sentence with '{{name}}' for the object's name",
            "set env.train.instruction='put {name} on plate'",
        )
    names = [str(entry["name"]) for entry in json.loads(Path(objects_file).read_text(encoding="utf-8")).values()]
    first, end = objects or (0, len(names))
    if not 0 <= first < end <= len(names):
        raise ConfigError(
            f"env.train.objects is {list(objects)}, and {objects_file} has {len(names)}",
            f"set env.train.objects=[0,{len(names)}]",
        )
    return tuple(instruction.replace("{name}", name) for name in names[first:end])
