"""Makes ManiSkill's env of a task; errors say the fix. Only for the worker: imports mani_skill when it is used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from embodied.errors import AssetsMissingError, ConfigError, unknown_name

from .facts import SimParams


def make_env(
    params: SimParams, render_backend: str, sensors: Mapping[str, Any], sim_backend: str = "physx_cpu", copies: int = 1
) -> Any:
    """Makes ManiSkill's env without its wrappers. Several copies need a GPU (``physx_cuda:0``) and are built alike.

    Raises:
        AssetsMissingError: the task's or the robot's files were not downloaded.
        UnknownNameError, ConfigError: the robot, its control mode, or an argument of the task.
    """
    import gymnasium
    import mani_skill.envs  # noqa: F401 (registers the tasks)
    import torch
    from mani_skill.agents import REGISTERED_AGENTS
    from mani_skill.utils.registration import REGISTERED_ENVS

    if params.task_file:
        load_file(params.task_file)
    _check_assets(params)
    if params.robot_uids is not None and params.robot_uids not in REGISTERED_AGENTS:
        raise unknown_name("robot", params.robot_uids, REGISTERED_AGENTS, "env.train.init_params.robot_uids")
    rewards = REGISTERED_ENVS[params.id].cls.SUPPORTED_REWARD_MODES
    robot: dict[str, Any] = {} if params.robot_uids is None else {"robot_uids": params.robot_uids}
    try:
        with torch.inference_mode(), _built_alike():
            made = gymnasium.make(
                params.id,
                num_envs=copies,
                obs_mode="none" if params.obs_mode == "rgb" else params.obs_mode,
                reward_mode="normalized_dense" if "normalized_dense" in rewards else "none",
                control_mode=params.control_mode,
                sim_backend=sim_backend,
                render_backend=render_backend,
                sensor_configs=dict(sensors),
                sim_config=dict(params.sim_config),
                **robot,
                **params.task_kwargs,
            )
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(
            f"{params.id} does not take what init_params gives it: {str(error).split(' was raised from')[0]}",
            "correct env.train.init_params.task_kwargs and sim_config",
        ) from None
    except AssertionError as error:
        raise _unknown_control_mode(params, str(error)) from None
    return made.unwrapped


@contextmanager
def _built_alike() -> Iterator[None]:
    """Within it, all copies of a task are built with one seed, that of a single copy.

    ManiSkill builds each copy with its own seed. What a task draws while it builds (a valve's shape) would then depend
    on the copy in which an episode runs.
    """
    from mani_skill.envs.sapien_env import BaseEnv

    usual = BaseEnv.reset

    def reset(env: Any, seed: Any = None, options: Any = None) -> Any:
        return usual(env, seed=[seed[0]] * len(seed) if isinstance(seed, list) else seed, options=options)

    BaseEnv.reset = reset
    try:
        yield
    finally:
        BaseEnv.reset = usual


def load_file(path: str) -> ModuleType:
    """Imports a Python file by its path, once."""
    name = f"embodied_maniskill_task_{Path(path).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _check_assets(params: SimParams) -> None:
    """Refuses missing files; ManiSkill would ask on stdin whether to download them."""
    from mani_skill.agents import REGISTERED_AGENTS
    from mani_skill.utils.assets import data
    from mani_skill.utils.registration import REGISTERED_ENVS

    needed = list(REGISTERED_ENVS[params.id].asset_download_ids)
    if params.robot_uids in REGISTERED_AGENTS:
        needed += REGISTERED_AGENTS[params.robot_uids].asset_download_ids
    missing = []
    while needed:
        asset = needed.pop()
        if asset in data.DATA_GROUPS and asset not in data.DATA_SOURCES:
            needed += data.DATA_GROUPS[asset]
        elif not data.is_data_source_downloaded(asset):
            missing.append(asset)
    if missing:
        raise AssetsMissingError(
            f"{params.id} needs files that are not on this machine: {', '.join(sorted(missing))}",
            " && ".join(f"python -m mani_skill.utils.download_asset {asset} -y" for asset in sorted(missing)),
        )


def _unknown_control_mode(params: SimParams, said: str) -> Exception:
    """Makes the error for a failed assertion of ManiSkill's; builds the default mode to ask for the robot's modes."""
    import gymnasium

    robot: dict[str, Any] = {} if params.robot_uids is None else {"robot_uids": params.robot_uids}
    env = gymnasium.make(
        params.id, obs_mode="none", sim_backend="physx_cpu", render_backend="none", **robot, **params.task_kwargs
    )
    modes = env.unwrapped.agent.supported_control_modes  # type: ignore[attr-defined]
    if params.control_mode in modes:
        return ConfigError(f"ManiSkill could not build {params.id}: {said}", "correct env.train.init_params")
    key = "env.train.init_params.control_mode"
    return unknown_name(f"control mode of {params.id}'s robot", params.control_mode, modes, key)
