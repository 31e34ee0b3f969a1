"""ManiSkill's simulator of one task. Only for the worker: imports mani_skill, SAPIEN and torch when it is used.

Stepping is that of ``BaseEnv.step`` without its observation; pictures are taken when they are asked for. On a CPU
without a GPU's help one picture costs as much as seven to fifteen control steps.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from embodied.errors import AssetsMissingError, ConfigError, SpecMismatchError, unknown_name
from embodied.types import StepResult

from ._common import axis_angle
from ._maniskill_cameras import Cameras
from ._maniskill_experts import Waypoints, action_towards, hand_of
from ._maniskill_facts import SimParams


def make_env(params: SimParams, render_backend: str, sensors: Mapping[str, Any]) -> Any:
    """ManiSkill's env without its wrappers, on the CPU.

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
        with torch.inference_mode():
            made = gymnasium.make(
                params.id,
                obs_mode="none" if params.obs_mode == "rgb" else params.obs_mode,
                reward_mode="normalized_dense" if "normalized_dense" in rewards else "none",
                control_mode=params.control_mode,
                sim_backend="physx_cpu",
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


def load_file(path: str) -> ModuleType:
    """Import a Python file by its path, once."""
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
    """ManiSkill would ask on stdin whether to download what is missing."""
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
    """ManiSkill asserts that the mode is known; the robot's own modes are asked for with its default one."""
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


def read_state(env: Any) -> dict[str, np.ndarray]:
    """What ManiSkill gives beside the pictures in its visual observation modes, each float32 [n].

    The robot's proprioception, and what belongs to the task (``goal_pos``); poses of objects are not among it.
    ``proprio`` is made of it: gripper position, axis-angle and both fingers, as LIBERO's state.
    """
    found: dict[str, np.ndarray] = {}
    _flatten({**env._get_obs_agent(), **env._get_obs_extra(env.get_info())}, found)
    if len(found.get("tcp_pose", ())) == 7 and len(found["qpos"]) > 2:
        w, x, y, z = map(float, found["tcp_pose"][3:])
        found["proprio"] = np.concatenate([found["tcp_pose"][:3], axis_angle(x, y, z, w), found["qpos"][-2:]])
    return found


def _flatten(tree: Mapping[str, Any], found: dict[str, np.ndarray]) -> None:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _flatten(value, found)
        else:
            found[name] = np.asarray(value, np.float32).reshape(-1)


class TaskSimulator:
    """One ManiSkill env and the episode that runs in it.

    Args:
        cameras: ManiSkill's sensors that are rendered, and no others.
        show_goal: draw what ManiSkill hides from the robot's cameras (PickCube's goal sphere).
        info_reward: weights of entries of ManiSkill's ``info``, whose sum is the reward; empty: normalized_dense.
    """

    def __init__(
        self,
        params: SimParams,
        render_backend: str,
        cameras: Cameras,
        show_goal: bool,
        info_reward: Mapping[str, float],
    ) -> None:
        import torch

        self._torch = torch
        _keep_renderer(render_backend)
        self.env = make_env(params, render_backend, cameras.sensor_configs(params.shader_pack))
        self._cameras, self._show_goal, self._info_reward = cameras.names, show_goal, dict(info_reward)
        self._through_env = params.obs_mode != "rgb"
        self._begun: tuple[int, dict[str, Any]] = (0, {})
        self._actions: list[np.ndarray] = []
        self._pictures: dict[str, np.ndarray] = {}
        self._check_info_reward()

    def _check_info_reward(self) -> None:
        with self._torch.inference_mode():
            known = self.env.get_info()
        for name in self._info_reward:
            if name not in known:
                raise unknown_name("entry of ManiSkill's info", name, known, "env.train.info_reward")

    @property
    def action_dim(self) -> int:
        return int(self.env.single_action_space.shape[0])

    def begin(self, seed: int, options: Mapping[str, Any]) -> None:
        """``env.reset(seed, options)``; renders nothing, and nothing of earlier episodes stays."""
        self._begun, self._actions, self._pictures = (seed, dict(options)), [], {}
        with self._torch.inference_mode():
            given = {name: self._torch.tensor([value]) for name, value in options.items()}
            self.env.reset(seed=seed, options=given)

    def step(self, action: np.ndarray) -> StepResult:
        """One control step: ``BaseEnv.step`` without its observation."""
        self._actions.append(np.array(action, np.float32))
        self._pictures = {}
        env = self.env
        with self._torch.inference_mode():
            batch = env._step_action(self._torch.from_numpy(self._actions[-1]))
            env._elapsed_steps += 1
            info = env.get_info()
            success, fail = (bool(info[name].item()) if name in info else False for name in ("success", "fail"))
            reward = self._reward(batch, info)
        return StepResult(reward, terminated=success or fail, success=success)

    def _reward(self, action: Any, info: Mapping[str, Any]) -> float:
        if self._info_reward:
            return sum(weight * float(info[name].item()) for name, weight in self._info_reward.items())
        if self.env.reward_mode == "none":
            return float(bool(info["success"].item())) if "success" in info else 0.0
        return float(self.env.get_reward(obs={}, action=action, info=info).item())

    def picture(self, camera: str) -> np.ndarray:
        """uint8 [H, W, 3], upright. All cameras are rendered together, once for each state."""
        if not self._pictures:
            with self._torch.inference_mode():
                self._pictures = self._through_get_obs() if self._through_env else self._rendered()
        return self._pictures[camera]

    def _rendered(self) -> dict[str, np.ndarray]:
        env = self.env
        for thing in env._hidden_objects:
            thing.show_visual() if self._show_goal else thing.hide_visual()
        env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        sensors = {name: env.scene.sensors[name] for name in self._cameras}
        for sensor in sensors.values():
            sensor.capture()
        only_rgb = {"rgb": True, "depth": False, "position": False, "segmentation": False}
        return {name: sensor.get_obs(**only_rgb)["rgb"][0].cpu().numpy() for name, sensor in sensors.items()}

    def _through_get_obs(self) -> dict[str, np.ndarray]:
        """For tasks that change the cameras' pictures (a photograph as background)."""
        seen = self.env.get_obs(self.env.get_info())["sensor_data"]
        return {name: seen[name]["rgb"][0].to(self._torch.uint8).cpu().numpy() for name in self._cameras}

    def state(self, fields: Sequence[str]) -> np.ndarray:
        """float32 [S]: these fields of :func:`read_state`, one after another."""
        with self._torch.inference_mode():
            found = read_state(self.env)
        return np.concatenate([found[name] for name in fields]).astype(np.float32)

    def expert(self, waypoints: Callable[[Any], Waypoints]) -> Iterator[np.ndarray]:
        """Actions of a script of ``_maniskill_experts``, each seen from where the last one led."""
        script = waypoints(self.env)
        while True:
            with self._torch.inference_mode():
                try:
                    target, gripper = next(script)
                except StopIteration:
                    return
                action = action_towards(target, hand_of(self.env), gripper, self.action_dim)
            yield action

    def physics(self) -> np.ndarray:
        """ManiSkill's flat state of all bodies, float32 [n]."""
        with self._torch.inference_mode():
            return self.env.get_state().cpu().numpy()[0].copy()

    def get_state(self) -> dict[str, Any]:
        """The way here. PhysX keeps contacts and link poses that cannot be written back: restoring positions,
        velocities and targets goes on with other numbers from the first step on; the same actions do not."""
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self.action_dim), np.float32)
        seed, options = self._begun
        return {"seed": seed, "options": dict(options), "actions": actions, "physics": self.physics()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes the way again (3 to 6 ms a control step), and checks where it led."""
        self.begin(state["seed"], state["options"])
        for action in state["actions"]:
            self.step(action)
        if not np.array_equal(self.physics(), state["physics"]):
            raise SpecMismatchError(
                f"{type(self.env).__name__}: the same start and {len(state['actions'])} actions led to another state",
                "this task keeps something of earlier episodes, or draws random numbers while it steps",
            )

    def close(self) -> None:
        self.env.close()


@functools.cache
def _keep_renderer(render_backend: str) -> Any:
    """SAPIEN computes a table of reflections (10 s of CPU in software) for the first picture and forgets it with the
    last scene; as long as one render system lives it is computed once a process."""
    import sapien.render

    return sapien.render.RenderSystem(sapien.Device({"gpu": "cuda"}.get(render_backend, render_backend)))


def prepare_process() -> dict[str, str]:
    """Once in the worker, before SAPIEN is imported: one thread, no questions. Versions of what was found."""
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's software renderer: no threads beside the calling one
    import mani_skill
    import sapien

    return {"maniskill": mani_skill.__version__, "sapien": sapien.__version__}
