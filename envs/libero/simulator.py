"""Steps one LIBERO task in MuJoCo, in the worker: built once, then set to any state; equal to the original bit by bit.

The original (``OffScreenRenderEnv``) does more in an episode. Left out here is what changes nothing:

==========================================  =====================================================================
original                                    here
==========================================  =====================================================================
``reset()`` rebuilds the model, 2 s         the state after the first reset is kept and restored, < 1 ms
renders each camera in each control step    on demand (:meth:`TaskSimulator.render`)
reads 40 observables in each sub-step       the positions that the sensors saw are noted; the rest on demand
looks names up in each sub-step             once (:mod:`embodied.envs.libero.control`, ``goals``)
three forward passes a sub-step             one, split around the controller (``mj_step1``, ``mj_step2``)
==========================================  =====================================================================

Fixtures (cabinets, stoves) are placed at random by each reset of the original, by numpy's global generator. OpenVLA's
evaluation seeds it with 0 before its first reset; that placement is the one that is kept here.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..shared.rotations import axis_angle, product, quaternion_of, turned
from .build import build, check_size, reset_with
from .control import make_control
from .goals import Goals, place_of
from .grasps import Boxes
from .memory import copy_data, unreserved
from .rendering import Offscreen, Pictures

CONTROL_HZ = 20
WAIT_ACTION = np.array([0.0, 0, 0, 0, 0, 0, -1])  # stand still with an open gripper
_SETTLED = 200  # settled states that are kept, some 10 kB each


class SensorClock:
    """Predicts the physics sub-steps at which robosuite reads its sensors, by the sums of its ``Observable.update``.

    An observation shows the sub-step at which the timer sampled, not the end of the control step. Rounding of floats
    decides which sub-step that is, so the same additions are made here.
    """

    _PERIOD = 1.0 / CONTROL_HZ

    def __init__(self, timestep: float) -> None:
        self._timestep = timestep
        self.state = (0.0, False)  # s since the last period began, sampled in this period

    def tick(self, force: bool = False) -> bool:
        """Advances one sub-step; returns whether the sensors are read in it."""
        elapsed, sampled = self.state
        elapsed += self._timestep
        read = force or (not sampled and elapsed <= self._PERIOD)
        sampled |= read
        if elapsed >= self._PERIOD:
            read |= not sampled
            elapsed, sampled = elapsed % self._PERIOD, False
        self.state = (elapsed, sampled)
        return read


@dataclass
class Suspended:
    """The stored state of an env slot while another slot uses its simulator."""

    data: Any  # MuJoCo's, whole
    beside: dict[str, Any]  # entries of :meth:`TaskSimulator.get_state` that ``data`` lacks
    open_goals: list[list[str]] | None
    pictures: dict[str, np.ndarray]


class TaskSimulator:
    """Simulates one task. Building takes seconds; going to an initial state 0.1 s the first time, then 0.1 ms.

    Args:
        keep_assets: keep decoded textures and meshes, so that the next build takes 1 instead of 3 CPU seconds.
    """

    def __init__(self, bddl_file: str, pictures: Pictures, keep_assets: bool = False) -> None:
        import mujoco

        self._mujoco, self._wanted = mujoco, pictures
        self._domain, self._before_reset = build(bddl_file, keep_assets)
        self._robot = self._domain.robots[0]
        self._model, self._data = self._domain.sim.model._model, self._domain.sim.data._data
        # positions and velocities are all that the controller reads, so it needs only the first half of MuJoCo's step
        self._domain.sim.forward = functools.partial(mujoco.mj_step1, self._model, self._data)
        self._shown_data = unreserved(mujoco.MjData(self._model))  # positions that the sensors saw, for rendering
        self._fingers = np.array(self._robot._ref_gripper_joint_pos_indexes)
        self._camera_ids = {name: self._domain.sim.model.camera_name2id(name) for name in pictures.cameras}
        self._control, self._goals = make_control(self._domain), Goals(self._domain)
        self._substeps = int(self._domain.control_timestep / self._domain.model_timestep)
        self._clock = SensorClock(self._domain.model_timestep)
        self._clock.tick(force=True)  # the original's reset does the same
        self._note_sensors()
        self._after_reset = self.get_state()
        self._settled: dict[Any, dict[str, Any]] = {}  # (start, …) → settled state, which a whole group uses
        self._offscreen: Offscreen | None = None
        self._pictures: dict[str, np.ndarray] = {}

    def begin(self, init_state: np.ndarray, wait_steps: int, arm: np.ndarray | None = None) -> None:
        """Goes to an initial state [1 + nq + nv] and lets the objects settle for ``wait_steps`` control steps.

        Args:
            arm: joints (rad) [7] of the arm in the original's reset, before the initial state; None: its robot's.
        """
        start = (init_state.tobytes(), wait_steps, None if arm is None else arm.tobytes())
        if start not in self._settled:
            check_size(init_state, self._model)
            self.set_state(self._after_reset if arm is None else self._reset_with(arm))
            self._place(init_state)
            for _ in range(wait_steps):
                self.step(WAIT_ACTION)
            if len(self._settled) == _SETTLED:
                del self._settled[next(iter(self._settled))]
            self._settled[start] = self.get_state()
        self.set_state(self._settled[start])

    def _reset_with(self, arm: np.ndarray) -> dict[str, Any]:
        """Returns the state after a reset of the original whose robot starts from other joints."""
        with reset_with(self._domain, self._before_reset, arm):
            return {**self._after_reset, "physics": self._physics(), "controller": self._controller_state()}

    def _place(self, init_state: np.ndarray) -> None:
        """Does what the original's ``set_init_state`` does, without its rendering."""
        self._domain.sim.set_state_from_flattened(init_state)
        self._mujoco.mj_forward(self._model, self._data)
        self._goals.evaluate()  # lights the burner of a stove that is on
        self._domain._post_process()
        self._clock.tick(force=True)
        self._note_sensors()

    def step(self, action: np.ndarray) -> bool:
        """Executes one control step [7]; returns whether the goal is reached."""
        self._pictures = {}
        read_at = [substep for substep in range(self._substeps) if self._clock.tick()]
        self._control.begin(action)
        if read_first := read_at[:1] == [0]:
            self._note_sensors()
        self._mujoco.mj_step2(self._model, self._data)
        if read_first:  # poses are those before the integration, joint angles those after it, as in the original
            self._gripper_qpos = self._data.qpos[self._fingers]
            del read_at[0]
        done = 1
        for here, until in zip(read_at, [*read_at[1:], self._substeps], strict=True):
            self._shown_qpos, self._gripper_qpos = self._control.advance(until - done, here - done)
            self._shown_site_rgba = self._model.site_rgba.copy()
            done = until
        if done < self._substeps:
            self._control.advance(self._substeps - done)
        success = self._goals.evaluate()
        self._domain._post_process()
        return success

    def _note_sensors(self) -> None:
        self._shown_qpos = self._data.qpos.copy()
        self._shown_site_rgba = self._model.site_rgba.copy()
        self._gripper_qpos = self._data.qpos[self._fingers]

    def robot_state(self) -> np.ndarray:
        """Reads float32 [8]: gripper position (m), its orientation (axis-angle, rad), the two fingers (m)."""
        data = self._shown()
        position = data.site_xpos[self._robot.eef_site_id]
        w, x, y, z = data.xquat[self._model.body(self._robot.robot_model.eef_name).id]
        return np.concatenate([position, axis_angle(x, y, z, w), self._gripper_qpos]).astype(np.float32)

    def render(self, camera: str) -> np.ndarray:
        """Renders what the sensors saw last, uint8 [H, W, 3], upright. Computed once for each state."""
        if camera not in self._pictures:
            if self._offscreen is None:
                wanted = self._wanted
                self._offscreen = Offscreen(self._model, wanted.width, wanted.height, wanted.mesh_cell)
            now, self._model.site_rgba[:] = self._model.site_rgba.copy(), self._shown_site_rgba
            self._pictures[camera] = self._offscreen.render(self._shown(), self._camera_ids[camera])
            self._model.site_rgba[:] = now
        return self._pictures[camera]

    def move_camera(self, camera: str, translation: np.ndarray, rotation: np.ndarray) -> None:
        """Moves a camera by a translation (m) and a rotation vector (rad), both in its own frame. The pose is part of
        the state, so :meth:`begin` puts it back."""
        number = self._camera_ids[camera]
        position, quaternion = self._model.cam_pos[number], self._model.cam_quat[number]
        position += turned(quaternion, np.asarray(translation, np.float64))
        quaternion[:] = product(quaternion, quaternion_of(np.asarray(rotation, np.float64)))
        self._pictures = {}

    def place_camera(self, camera: str, position: np.ndarray, quaternion: np.ndarray) -> None:
        """Puts a camera at a pose (m; w, x, y, z) of the world. :meth:`begin` puts it back."""
        number = self._camera_ids[camera]
        self._model.cam_pos[number], self._model.cam_quat[number] = position, quaternion
        self._pictures = {}

    def _shown(self) -> Any:
        """Poses of bodies, cameras and lights at the positions that the sensors saw."""
        mujoco, data = self._mujoco, self._shown_data
        data.qpos[:] = self._shown_qpos
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_comPos(self._model, data)
        mujoco.mj_camlight(self._model, data)
        return data

    def get_state(self) -> dict[str, Any]:
        """Everything that later steps, rewards and pictures depend on; the arrays are copies."""
        return copy.deepcopy({"physics": self._physics(), **self._beside_physics()})

    def set_state(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self._mujoco.mj_setState(self._model, self._data, state["physics"], _integration(self._mujoco))
        self._set_beside_physics(state)
        self._goals.forget()
        self._pictures = {}

    def _beside_physics(self) -> dict[str, Any]:
        return {
            "controller": self._controller_state(),
            "gripper": self._robot.gripper.current_action,
            "site_rgba": self._model.site_rgba,
            "lit_sites": self._lit_sites(),
            "clock": self._clock.state,
            "shown": (self._shown_qpos, self._shown_site_rgba, self._gripper_qpos),
            "cameras": (self._model.cam_pos, self._model.cam_quat),
        }

    def _set_beside_physics(self, state: dict[str, Any]) -> None:
        vars(self._robot.controller).update(state["controller"])
        self._robot.gripper.current_action = state["gripper"]
        self._model.site_rgba[:] = state["site_rgba"]
        for name, sites in state["lit_sites"].items():
            self._domain.get_object(name).object_properties["vis_site_names"] = sites
        self._clock.state = state["clock"]
        self._shown_qpos, self._shown_site_rgba, self._gripper_qpos = state["shown"]
        self._model.cam_pos[:], self._model.cam_quat[:] = state["cameras"]

    def suspend(self, before: Suspended | None) -> Suspended:
        """Stores the state for :meth:`resume`, with all that was computed from it: poses, contacts, pictures.

        Args:
            before: what was put away for the same slot last time; its memory is used again.
        """
        data = unreserved(self._mujoco.MjData(self._model)) if before is None else before.data
        copy_data(self._model, self._data, data)
        return Suspended(data, copy.deepcopy(self._beside_physics()), self._goals.open, self._pictures)

    def resume(self, state: Suspended) -> None:
        """Restores a state of :meth:`suspend`. Its arrays are the simulator's from now on."""
        copy_data(self._model, state.data, self._data)
        self._set_beside_physics(state.beside)
        self._goals.open, self._pictures = state.open_goals, state.pictures

    def _physics(self) -> np.ndarray:
        """Time, positions, velocities, controls and the solver's warm start."""
        physics = np.empty(self._mujoco.mj_stateSize(self._model, _integration(self._mujoco)))
        self._mujoco.mj_getState(self._model, self._data, physics, _integration(self._mujoco))
        return physics

    def _controller_state(self) -> dict[str, Any]:
        """Goals and flags of the controller; what remains (the simulation, names, indices) never changes."""
        kept = (np.ndarray, float, bool, type(None))
        return {name: value for name, value in vars(self._robot.controller).items() if isinstance(value, kept)}

    def _lit_sites(self) -> dict[str, Any]:
        """Returns the marks that are shown (a burner that is on), by object."""
        objects = {**self._domain.objects_dict, **self._domain.fixtures_dict}
        return {name: thing.object_properties["vis_site_names"] for name, thing in objects.items()}

    def progress(self) -> float:
        """Progress in [0, 1), defined in :class:`embodied.envs.libero.LiberoEnv`."""
        return self._goals.progress()

    def progress_features(self) -> np.ndarray:
        return self._goals.features(self._shown(), self._gripper_qpos)

    # -- what a scripted expert reads (``experts.Scene``): as the sensors saw it, like pictures and robot_state

    def hand(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the position [3] (m) between the fingers and the hand's axes [3, 3] as columns."""
        data, site = self._shown(), self._robot.eef_site_id
        return data.site_xpos[site].copy(), data.site_xmat[site].reshape(3, 3).copy()

    def base(self) -> np.ndarray:
        return self._shown().xpos[self._robot_body()].copy()

    def goals(self) -> list[list[str]]:
        return self._goals.all

    def reached(self, goal: list[str]) -> bool:
        return self._goals.reached(goal)

    def movable(self) -> list[str]:
        """Lists the objects that can be taken, and what they are put into."""
        return [*self._domain.objects_dict]

    def place(self, name: str) -> np.ndarray:
        """Returns the position [3] (m) of an object or a region."""
        return place_of(self._domain, self._shown(), name).copy()

    def boxes(self, name: str) -> Boxes:
        if name in self._domain.object_sites_dict and self._domain.object_states_dict[name].parent_name is None:
            return self._marked(name)
        return self._boxes(self._geoms_of(name))

    def _marked(self, name: str) -> Boxes:
        """The mark of a region that belongs to no object: a part of the table."""
        site = self._model.site(name).id
        axes = self._shown().site_xmat[site].reshape(1, 3, 3)
        return Boxes(self.place(name)[None], axes.copy(), self._model.site_size[site][None])

    def obstacles(self, name: str) -> Boxes:
        """Returns the boxes of everything but this object and the robot."""
        everything = np.arange(self._model.ngeom)
        return self._boxes(np.setdiff1d(everything, np.concatenate([self._geoms_of(name), self._robot_geoms()])))

    def _geoms_of(self, name: str) -> np.ndarray:
        """Ids of an object's geoms; for a region, those of its object."""
        if name in self._domain.object_sites_dict:
            name = self._domain.object_states_dict[name].parent_name
        return self._geoms_below(self._domain.obj_body_id[name])

    def _robot_geoms(self) -> np.ndarray:
        return self._geoms_below(self._robot_body())

    def _robot_body(self) -> int:
        return int(self._model.body(self._robot.robot_model.root_body).id)

    def _geoms_below(self, body: int) -> np.ndarray:
        return np.flatnonzero(self._model.body_rootid[self._model.geom_bodyid] == self._model.body_rootid[body])

    def _boxes(self, geoms: np.ndarray) -> Boxes:
        """Bounding boxes of the geoms that collide, without planes (the floor)."""
        model, data = self._model, self._shown()
        collide = (model.geom_contype[geoms] | model.geom_conaffinity[geoms]) > 0
        geoms = geoms[collide & (model.geom_type[geoms] != self._mujoco.mjtGeom.mjGEOM_PLANE)]
        axes = data.geom_xmat[geoms].reshape(-1, 3, 3)
        bounds = model.geom_aabb[geoms]
        centers = data.geom_xpos[geoms] + np.einsum("nij,nj->ni", axes, bounds[:, :3])
        return Boxes(centers, axes.copy(), bounds[:, 3:])

    def close(self) -> None:
        if self._offscreen is not None:
            self._offscreen.close()
            self._offscreen = None


def _integration(mujoco: Any) -> int:
    return int(mujoco.mjtState.mjSTATE_INTEGRATION)
