"""ManiSkill's simulator of one task. Only for the worker: imports mani_skill, SAPIEN and torch when it is used.

Stepping is that of ``BaseEnv.step`` without its observation; pictures are taken when they are asked for. On a CPU
without a GPU's help one picture costs as much as seven to fifteen control steps. One copy on the CPU and many on a GPU
are the same code: N is 1 there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError, unknown_name
from embodied.lib.memory import trim
from embodied.types import StepResult

from .build import make_env
from .cameras import Cameras
from .controller import cache_ee_pose
from .culling import Culling
from .experts import Waypoints, action_towards, hand_of, within_reach
from .facts import SimParams
from .fast.step import FastStep
from .moves import MovedCameras
from .physics import renew
from .state import read_state

UNMOVED = 1e-3  # m, rad, m/s or rad/s: rounding of what is read from a GPU and written back is less


class TaskSimulator:
    """Steps N copies of a ManiSkill task together and holds their episodes. N = 1 on the CPU.

    Args:
        device: what simulates: "cpu", or a GPU ("cuda:0"), which then renders as well.
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
        device: str = "cpu",
        copies: int = 1,
    ) -> None:
        import torch

        self._torch, self._params, self._on_gpu = torch, params, device != "cpu"
        render_backend = f"sapien_{device}" if self._on_gpu else render_backend
        self._draws_on_cuda = (drawing := render_backend.removeprefix("sapien_")).startswith("cuda:")
        if self._draws_on_cuda:
            torch.cuda.set_device(drawing)  # ManiSkill waits for "cuda", whichever GPU draws
        _keep_renderer(render_backend)
        sensors = cameras.sensor_configs(params.shader_pack)
        self.env = make_env(params, render_backend, sensors, f"physx_{device}", copies)
        self._cameras, self._show_goal, self._info_reward = cameras.names, show_goal, dict(info_reward)
        self._through_env = params.obs_mode != "rgb"
        self._seeds = [0] * copies  # seeds of the present episodes
        self._options: dict[str, Any] = {}  # options of the episode that began last
        self._actions: list[np.ndarray] = []  # actions of the episode, kept where a state can be saved
        self._pictures: dict[str, Any] = {}  # pictures of the present state: camera → uint8 [N, H, W, 3], on the device
        self._moved, self._trim_once = MovedCameras(), functools.cache(trim)  # imports and shaders leave 60 MB
        self._fast: FastStep | None = None  # fast step of the present episode; None on a GPU
        self._may_cull = not self._on_gpu and params.shader_pack == "minimal"
        self._culling: Culling | None = None
        self._begin_episode = self.env._initialize_episode
        self.env._initialize_episode = self._one_after_another
        self._check_info_reward()

    def _check_info_reward(self) -> None:
        with self._torch.inference_mode():
            known = self.env.get_info()
        for name in self._info_reward:
            if name not in known:
                raise unknown_name("entry of ManiSkill's info", name, known, "env.train.info_reward")

    @property
    def copies(self) -> int:
        return int(self.env.num_envs)

    @property
    def action_dim(self) -> int:
        return int(self.env.single_action_space.shape[0])

    # -- resets ------------------------------------------------------------------------------------------------------

    def begin(self, slots: Sequence[int], seeds: Sequence[int], options: Sequence[Mapping[str, int]]) -> None:
        """Resets some copies by ``env.reset(seed, options)``, each as if it were alone. Renders nothing.

        Nothing of earlier episodes stays. The other copies stay as they are.

        Raises:
            ConfigError: the task moves all copies while it sets up some.
        """
        self._actions, self._pictures, self._options = [], {}, dict(options[-1])
        self._moved.put_back()
        for slot, seed in zip(slots, seeds, strict=True):
            self._seeds[slot] = seed
        others = sorted({*range(self.copies)} - {*slots})
        if not self._on_gpu:
            renew(self.env)
        with self._torch.inference_mode():
            before = self.env.get_state()[others] if others else None
            chosen = self._torch.tensor(slots, device=self.env.device)
            given = {
                name: self._torch.tensor([own[name] for own in options], device=self.env.device) for name in options[-1]
            }
            with self._controllers_reset(chosen):
                self.env.reset(seed=list(self._seeds), options={**given, "env_idx": chosen})
            cache_ee_pose(self.env.agent)  # the task may have built another robot
            if before is not None:
                self._check_unmoved(before, self.env.get_state()[others])
            if not self._on_gpu:
                self._fast = FastStep(self.env)

    def _one_after_another(self, env_idx: Any, options: dict[str, Any]) -> None:
        """Replaces the task's ``_initialize_episode`` and sets up one copy at a time.

        The original draws for all copies from one generator, seeded by the first: a start would depend on which other
        copies are reset with it.
        """
        env, mask = self.env, self.env.scene._reset_mask
        per_copy = [name for name in self._options if name in options]
        for place, slot in enumerate(env_idx.tolist()):
            own = slice(place, place + 1)
            env.scene._reset_mask = self._torch.zeros_like(mask)
            env.scene._reset_mask[slot] = True
            env._episode_rng = env._batched_episode_rng[slot]
            self._torch.manual_seed(self._seeds[slot])  # inside fork_rng of env.reset
            chosen = {name: options[name][own] for name in per_copy}
            self._begin_episode(env_idx[own], {**options, **chosen, "env_idx": env_idx[own]})
        env.scene._reset_mask = mask

    @contextmanager
    def _controllers_reset(self, chosen: Any) -> Iterator[None]:
        """Within it, a reset of the controllers clears the targets of these copies only.

        ``env.reset`` clears all. Under a target controller, copies in the middle of an episode would then go on from
        where they are, not from where they aim.
        """
        scene, agent = self.env.scene, self.env.agent
        rebuilt = self.env.reconfiguration_freq != 0  # then there is one copy, and its controllers are new ones
        found = {} if rebuilt or agent is None else agent.controller
        controllers = list(found.values()) if isinstance(found, Mapping) else [found]

        def masked(reset: Callable[[], None]) -> None:
            before, scene._reset_mask = scene._reset_mask, self._torch.zeros_like(scene._reset_mask)
            scene._reset_mask[chosen] = True
            reset()
            scene._reset_mask = before

        for controller in controllers:
            controller.reset = functools.partial(masked, controller.reset)
        try:
            yield
        finally:
            for controller in controllers:
                del controller.reset

    def _check_unmoved(self, before: Any, after: Any) -> None:
        moved = float((before - after).abs().nan_to_num().max())
        if moved > UNMOVED:
            raise ConfigError(
                f"a reset of some copies of {self._params.id} moved others by {moved:.3g}: the task steps the "
                "simulator while it sets an episode up",
                "set env.train.sim_backend=cpu and env.eval.sim_backend=cpu",
            )

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, actions: np.ndarray) -> list[StepResult]:
        """Executes one control step with float32 [N, A]: ``BaseEnv.step`` without its observation. Results leave the
        device in one copy. With one copy on the CPU, what is known to :class:`FastStep` takes a fraction of the time.
        """
        actions = np.array(actions, np.float32)  # a copy: actions are repeated from what is kept here
        if not self._on_gpu:
            self._actions.append(actions[0])
        self._pictures = {}
        env, torch, fast = self.env, self._torch, self._fast
        with torch.inference_mode():
            given = torch.from_numpy(actions.copy()).to(env.device)
            if fast is None or not fast.act(actions):
                given = env._step_action(given)
            env._elapsed_steps += 1
            if fast is not None and (result := fast.result(self._info_reward)) is not None:
                return [result]
            info = env.get_info()
            success, fail = (self._of_info(info, name) for name in ("success", "fail"))
            table = torch.stack([self._reward(given, info), success, fail]).cpu().tolist()
        return [StepResult(reward, bool(won or lost), bool(won)) for reward, won, lost in zip(*table, strict=True)]

    def _of_info(self, info: Mapping[str, Any], name: str) -> Any:
        """Gives an entry of ManiSkill's ``info`` as float64 [N]; zeros if the task has none."""
        torch, env = self._torch, self.env
        if name not in info:
            return torch.zeros(env.num_envs, dtype=torch.float64, device=env.device)
        return torch.as_tensor(info[name], device=env.device).to(torch.float64).reshape(env.num_envs)

    def _reward(self, action: Any, info: Mapping[str, Any]) -> Any:
        """Rewards, float64 [N]."""
        if self._info_reward:
            return sum(weight * self._of_info(info, name) for name, weight in self._info_reward.items())
        if self.env.reward_mode == "none":
            return (self._of_info(info, "success") != 0).to(self._torch.float64)
        reward = self.env.get_reward(obs={}, action=action, info=info)
        return reward.to(self._torch.float64).reshape(self.env.num_envs)

    # -- observations ------------------------------------------------------------------------------------------------

    def pictures(self, slots: Sequence[int], cameras: Sequence[str]) -> np.ndarray:
        """Renders upright pictures of some copies, uint8 [n, C, H, W, 3].

        All copies are rendered together, once for each state. The pictures asked for leave the device in one copy.
        """
        with self._torch.inference_mode():
            if not self._pictures:
                self._pictures = self._through_get_obs() if self._through_env else self._rendered()
                self._trim_once()
            chosen = [self._pictures[name][list(slots)] for name in cameras]
            return self._torch.stack(chosen, dim=1).cpu().numpy()

    def move_camera(self, name: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        """Moves a camera of the one copy until the next :meth:`begin`."""
        self._moved.move(self.env, name, translation, rotation)
        self._pictures = {}

    def _rendered(self) -> dict[str, Any]:
        env = self.env
        for thing in env._hidden_objects:
            thing.show_visual() if self._show_goal else thing.hide_visual()
        sensors = {name: env.scene.sensors[name] for name in self._cameras}
        if self._may_cull:
            self._cull([sensor.camera._render_cameras[0] for sensor in sensors.values()])
        env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        for sensor in sensors.values():
            sensor.capture()
        only_rgb = {"rgb": True, "depth": False, "position": False, "segmentation": False}
        found = {name: sensor.get_obs(**only_rgb)["rgb"] for name, sensor in sensors.items()}
        if self._draws_on_cuda:
            self._torch.cuda.synchronize()  # ManiSkill does the same: the renderer has streams of its own
        return found

    def _cull(self, cameras: Sequence[Any]) -> None:
        if self._culling is None or self._culling.scene is not self.env.scene:  # the task has built another one
            self._culling = Culling(self.env.scene, cameras)
        self._culling.apply()

    def _through_get_obs(self) -> dict[str, Any]:
        """Serves tasks that change the cameras' pictures (a photograph as background)."""
        seen = self.env.get_obs(self.env.get_info())["sensor_data"]
        return {name: seen[name]["rgb"].to(self._torch.uint8) for name in self._cameras}

    def state(self, fields: Sequence[str]) -> np.ndarray:
        """Joins the given fields of :func:`read_state`: float32 [N, S]."""
        if self._fast is not None and (known := self._fast.state(fields)) is not None:
            return known
        with self._torch.inference_mode():
            found = read_state(self.env)
        return np.concatenate([found[name] for name in fields], axis=1).astype(np.float32)

    # -- one copy on the CPU -----------------------------------------------------------------------------------------

    def expert(self, waypoints: Callable[[Any], Waypoints]) -> Iterator[np.ndarray]:
        """Yields the actions of a scripted expert; each is computed from the state that the last one led to."""
        script = waypoints(self.env)
        while True:
            with self._torch.inference_mode():
                try:
                    target, gripper = next(script)
                except StopIteration:
                    return
                wanted = action_towards(target, hand_of(self.env), gripper, self.action_dim)
                action = within_reach(self.env, wanted)
            yield action

    def physics(self) -> np.ndarray:
        """Returns ManiSkill's flat state of all bodies of the first copy, float32 [n]."""
        with self._torch.inference_mode():
            return self.env.get_state().cpu().numpy()[0].copy()

    def get_state(self) -> dict[str, Any]:
        """Returns the start and the actions since, which :meth:`set_state` repeats. PhysX keeps contacts and link poses
        that cannot be written back: with positions, velocities and targets restored, the numbers differ from the first
        step on. Repeated actions give the same numbers.

        Raises:
            ConfigError: on a GPU, where the same actions lead elsewhere.
        """
        if self._on_gpu:
            raise ConfigError(
                "ManiSkill's GPU simulation cannot save a state: PhysX keeps contacts that cannot be written back, and "
                "on a GPU the same actions do not lead to the same state bit by bit",
                "set sim_backend=cpu",
            )
        actions = np.stack(self._actions) if self._actions else np.zeros((0, self.action_dim), np.float32)
        return {
            "seed": self._seeds[0],
            "options": dict(self._options),
            "actions": actions,
            "physics": self.physics(),
            "moves": list(self._moved.moves),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Repeats the actions from the start (1 to 6 ms a control step) and checks the state they led to."""
        self.begin([0], [state["seed"]], [state["options"]])
        for move in state["moves"]:
            self.move_camera(*move)
        for action in state["actions"]:
            self.step(action[None])
        if not np.array_equal(self.physics(), state["physics"]):
            raise SpecMismatchError(
                f"{type(self.env).__name__}: the same start and {len(state['actions'])} actions led to another state",
                "this task keeps something of earlier episodes, or draws random numbers while it steps",
            )

    def close(self) -> None:
        self.env.close()


@functools.cache
def _keep_renderer(render_backend: str) -> Any:
    """Keeps one render system alive for the whole process.

    SAPIEN computes a table of reflections (10 s of CPU in software) for the first picture, and drops it when no scene
    and no render system is left.
    """
    import sapien.render

    device = {"gpu": "cuda"}.get(render_backend, render_backend.removeprefix("sapien_"))
    return sapien.render.RenderSystem(sapien.Device(device))


def prepare_process() -> dict[str, str]:
    """Prepares a worker before SAPIEN is imported (one rendering thread) and gives the versions found."""
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's software renderer: no threads beside the calling one
    import mani_skill
    import sapien

    return {"maniskill": mani_skill.__version__, "sapien": sapien.__version__}
