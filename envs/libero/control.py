"""Chooses who turns an action into torques: :class:`CompiledControl` where it knows the robot, else robosuite.

Per sub-step robosuite looks names, slices and limits up anew and allocates what it computes with. The compiled control
looks them up once. What happens once a control step (the goal from the action) stays robosuite's.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Protocol

import numpy as np

from embodied.lib.cache import cache_folder, one_process_first

KNOWN_ROBOSUITE = "1.4.0"


class Control(Protocol):
    """Interface that turns a robot's action into torques during a control step."""

    def begin(self, action: np.ndarray) -> None:
        """Begins a control step: runs the first half of its first sub-step, ``mj_step1``, and sets the torques.

        Args:
            action: float64 [7].
        """

    def advance(self, substeps: int, read: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Runs whole sub-steps after the control step's first.

        Args:
            read: the one at which the sensors are read; −1: none.

        Returns:
            What they read: all positions [nq] before it was integrated, and those of the fingers [2] after it, as in
            the original. Without a read they mean nothing.
        """


def make_control(domain: Any) -> Control:
    """Chooses the compiled control, or robosuite's with the reason logged."""
    reason = unknown_part(domain)
    if reason is None:
        return CompiledControl(domain)
    logging.getLogger(__name__).warning("LIBERO is stepped by robosuite's own control, which is slower: %s", reason)
    return OriginalControl(domain)


class OriginalControl:
    """Control by robosuite's own code."""

    def __init__(self, domain: Any) -> None:
        import mujoco

        self._domain = domain
        self._data, self._action = domain.sim.data._data, np.zeros(7)
        self._step2 = functools.partial(mujoco.mj_step2, domain.sim.model._model, self._data)

    def begin(self, action: np.ndarray) -> None:
        self._action = action
        self._domain._pre_action(action, True)  # calls sim.forward, which is mj_step1

    def advance(self, substeps: int, read: int = -1) -> tuple[np.ndarray, np.ndarray]:
        seen, fingers = np.empty(0), np.empty(0)
        for substep in range(substeps):
            self._domain._pre_action(self._action, False)
            if substep == read:
                seen = self._data.qpos.copy()
            self._step2()
            if substep == read:
                fingers = self._data.qpos[self._domain.robots[0]._ref_gripper_joint_pos_indexes]
        return seen, fingers


def prepare() -> None:
    """Compiles the control law once for all simulators of this process, and for those that are forked from it. Of
    processes that start together one compiles, which takes 15 to 30 CPU seconds, and the others load what numba has
    kept."""
    with one_process_first(cache_folder("numba")):
        if unknown_installation() is None:
            from . import osc

            osc.prepare()


def try_compiler() -> None:
    """Checks that numba compiles here, by a small function, which takes half a second and is not kept. Raises what
    numba raises."""
    import numba

    numba.njit(lambda torques: torques.sum() + 1.0)(np.ones(1))


def unknown_installation() -> str | None:
    """Says which installed packages are not of a version that the compiled control reproduces; None if all are."""
    import robosuite
    from robosuite import macros

    if robosuite.__version__ != KNOWN_ROBOSUITE:
        return f"robosuite is {robosuite.__version__}, not {KNOWN_ROBOSUITE}"
    if not macros.ENABLE_NUMBA:
        return "robosuite's settings say that it compiles nothing (ENABLE_NUMBA)"
    from .osc import mujoco_functions, numpy_gemv

    if numpy_gemv() is None:
        return "numpy's matrix product was not found"
    return "mujoco's functions were not found" if mujoco_functions() is None else None


def unknown_part(domain: Any) -> str | None:
    """Says what of the robot the compiled control does not reproduce; None if nothing."""
    from robosuite.controllers.osc import OperationalSpaceController
    from robosuite.environments.robot_env import RobotEnv
    from robosuite.models.grippers.panda_gripper import PandaGripper
    from robosuite.robots.single_arm import SingleArm

    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain

    if reason := unknown_installation():
        return reason
    if type(domain)._pre_action not in (BDDLBaseDomain._pre_action, RobotEnv._pre_action) or len(domain.robots) != 1:
        return f"{type(domain).__name__} treats actions in a way of its own"
    robot = domain.robots[0]
    for part, known in ((robot, SingleArm), (robot.controller, OperationalSpaceController)):
        if type(part) is not known:
            return f"expected {known.__name__}, got {type(part).__name__}"
    if type(robot.gripper) is not PandaGripper:
        return f"expected PandaGripper, got {type(robot.gripper).__name__}"
    return _unknown_setting(robot)


def _unknown_setting(robot: Any) -> str | None:
    controller = robot.controller
    expected = {
        "use_ori": True,
        "use_delta": True,
        "uncoupling": True,
        "impedance_mode": "fixed",
        "interpolator_pos": None,
        "interpolator_ori": None,
        "joint_dim": 7,
    }
    for name, value in expected.items():
        if getattr(controller, name) != value:
            return f"the controller's {name} is {getattr(controller, name)!r}, not {value!r}"
    return None


class CompiledControl:
    """Computes the torques of a Panda under OSC_POSE, equal to robosuite's bit by bit.

    MuJoCo is called from compiled code, not through its Python package: an error of MuJoCo's (out of memory) ends the
    process, as it does in C, instead of raising. Warnings are logged as ever.

    State stays where robosuite has it (the controller's goals, the gripper's ``current_action``), so that
    ``TaskSimulator`` saves and restores it in one way.
    """

    def __init__(self, domain: Any) -> None:
        import mujoco

        from . import osc

        robot, model, data = domain.robots[0], domain.sim.model._model, domain.sim.data._data
        self._original, self._controller, self._gripper = domain._pre_action, robot.controller, robot.gripper
        self._model, self._data = model, data
        self._compute: Any = osc.control
        self._advance: Any = osc.advance
        self._step1, self._jacobian_of = mujoco.mj_step1, mujoco.mj_jacSite
        self._site = domain.sim.model.site_name2id(self._controller.eef_name)
        self._position, self._axes = data.site_xpos[self._site], data.site_xmat[self._site].reshape(3, 3)
        jacobian = np.zeros((6, model.nv))
        self._jacobians = jacobian[:3], jacobian[3:]
        dofs = np.array(self._controller.qvel_index, np.int64)
        fingers = np.array([domain.sim.model.actuator_name2id(name) for name in self._gripper.actuators], np.int64)
        low, high = model.actuator_ctrlrange[fingers].T
        self._places = np.array([*(osc.mujoco_functions() or ()), model._address, data._address, self._site], np.int64)
        self._arm = osc.Arm(
            osc.numpy_gemv() or 0, jacobian, data.qpos, data.qvel, self._position, self._axes, data.qM,
            data.qfrc_bias, data.ctrl,
            goal=np.zeros(3), turned=np.zeros((3, 3)), kp=np.zeros(6), kd=np.zeros(6), initial=np.zeros(7),
            limits=np.array(robot.torque_limits, np.float64), moved=np.zeros(2),
            middle=0.5 * (high + low), half=0.5 * (high - low),
            qpos_at=np.array(self._controller.qpos_index, np.int64), dofs=dofs,
            motors=np.array(robot._ref_joint_actuator_indexes, np.int64), finger_motors=fingers,
            fingers_at=np.array(robot._ref_gripper_joint_pos_indexes, np.int64),
            addresses=np.ascontiguousarray(_addresses(mujoco, model, dofs)),
        )  # fmt: skip

    def begin(self, action: np.ndarray) -> None:
        if not self._controller.new_update:
            self._act_on_stale_state(action)
            return
        self._step1(self._model, self._data)
        self._set_goal(action)
        self._jacobian_of(self._model, self._data, *self._jacobians, self._site)
        self._compute(self._arm, self._gripper.current_action)

    def advance(self, substeps: int, read: int = -1) -> tuple[np.ndarray, np.ndarray]:
        seen, fingers = np.empty(self._model.nq), np.empty(2)
        self._advance(substeps, self._places, self._arm, self._gripper.current_action, read, seen, fingers)
        return seen, fingers

    def _set_goal(self, action: np.ndarray) -> None:
        """Sets the goal by robosuite's code, and reads what it depends on, once a control step."""
        assert len(action) == 7, f"expected an action of 7 numbers, got {len(action)}"
        controller = self._controller
        controller.ee_pos, controller.ee_ori_mat = self._position.copy(), self._axes.copy()
        controller.new_update = False  # the state is that of this sub-step
        controller.set_goal(action[:6])
        controller.new_update = True
        self._read_goal(action)

    def _act_on_stale_state(self, action: np.ndarray) -> None:
        """Acts as robosuite does in the first sub-step after a reset: on the arm as it was when it was reset."""
        self._original(action, True)
        self._read_goal(action)

    def _read_goal(self, action: np.ndarray) -> None:
        controller, gripper, arm = self._controller, self._gripper, self._arm
        arm.goal[:], arm.turned[:] = controller.goal_pos, controller.goal_ori
        arm.kp[:], arm.kd[:], arm.initial[:] = controller.kp, controller.kd, controller.initial_joint
        arm.moved[:] = np.array([-1.0, 1.0]) * gripper.speed * np.sign(action[6:])
        gripper.current_action = gripper.current_action + np.zeros(2)  # one number before the gripper's first action


def _addresses(mujoco: Any, model: Any, dofs: np.ndarray) -> np.ndarray:
    """Finds these degrees of freedom's inertia in MuJoCo's sparse ``qM``: indices [n, n], −1 where it is 0."""
    numbers = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, numbers, np.arange(1.0, model.nM + 1))
    return numbers[np.ix_(dofs, dofs)].astype(np.int64) - 1
