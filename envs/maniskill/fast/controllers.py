"""Controllers of the Panda as ManiSkill's ``set_action`` has them, for one robot on the CPU.

Source: mani_skill 3.0.1, ``agents/controllers/pd_ee_pose.py``, ``pd_joint_pos.py`` and ``utils/kinematics.py``. Each
class reads what it needs once; :class:`Control` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .numbers import ONE, Norm, Numbers, Pose, Quaternions, Remembered, add, inverse, multiply, pose_of, product

LOW, HIGH = np.float32(-1), np.float32(1)


class Unknown(Exception):
    """Raised where the fast path does not reproduce a part of the simulator. The message says which."""


class Scale:
    """Scales actions from [−1, 1] to a controller's own range, as ``clip_and_scale_action`` does."""

    def __init__(self, controller: Any, size: int) -> None:
        if not controller._normalize_action:
            raise Unknown("a controller whose actions are not scaled")
        low, high = (getattr(controller, f"action_space_{end}")[:size] for end in ("low", "high"))
        self._middle, self._half = (0.5 * (high + low)).numpy(), (0.5 * (high - low)).numpy()

    def __call__(self, action: np.ndarray) -> np.ndarray:
        return self._middle + self._half * np.minimum(np.maximum(action, LOW), HIGH)


class Joints:
    """The joints of a controller, whose drive targets can be set."""

    def __init__(self, controller: Any) -> None:
        self._drives = [joint._objs[0].set_drive_target for joint in controller.joints]
        self.indices = controller.active_joint_indices.numpy()

    def drive(self, targets: Sequence[Any]) -> None:
        """Sets the joints' drive targets, float32 numbers in rad or m."""
        for drive, target in zip(self._drives, targets, strict=True):
            drive(target)


class DeltaJoints:
    """``PDJointPosController`` with ``use_delta``: moves the joints from where they are."""

    def __init__(self, controller: Any) -> None:
        config = controller.config
        if not config.use_delta or config.use_target or config.interpolate:
            raise Unknown("joint positions that are not differences from the present ones")
        self._joints, self._scale = Joints(controller), Scale(controller, len(controller.joints))

    def act(self, action: np.ndarray, qpos: np.ndarray) -> None:
        """Sets the joints' drives for an action, from the joint positions ``qpos``."""
        self._joints.drive((qpos[self._joints.indices] + self._scale(action)).tolist())


class Gripper:
    """``PDJointPosMimicController`` of two fingers: the second goes where the first does."""

    def __init__(self, controller: Any) -> None:
        config = controller.config
        if config.use_delta or config.use_target or config.interpolate or len(controller.joints) != 2:
            raise Unknown("a gripper other than the Panda's")
        self._leads, self._follows = int(controller.control_joint_indices), int(controller.mimic_joint_indices)
        self._times, self._plus = controller._multiplier.numpy()[0], controller._offset.numpy()[0]
        self._joints, self._scale = Joints(controller), Scale(controller, 1)

    def act(self, action: np.ndarray, qpos: np.ndarray) -> None:
        """Sets both fingers' drives for an action."""
        targets = [0.0, 0.0]
        lead = self._scale(action)[0]
        targets[self._leads], targets[self._follows] = float(lead), float(lead * self._times + self._plus)
        self._joints.drive(targets)


class DeltaHand:
    """``PDEEPosController`` with ``use_delta``: moves the hand by inverse kinematics from where it is."""

    def __init__(self, controller: Any) -> None:
        config, kinematics = controller.config, controller.kinematics
        if not config.use_delta or config.use_target or config.interpolate:
            raise Unknown("hand positions that are not differences from the present one")
        self._check_frame(config.frame)
        self._joints, self._scale = Joints(controller), Scale(controller, 3)
        self._hand, self._root = controller.ee_link._objs[0], controller.root_link._objs[0]
        self._to_root = Remembered(inverse)
        self._solve = kinematics.pmodel.compute_inverse_kinematics
        self._end, self._mask = kinematics.end_link_idx, kinematics.qmask.numpy()
        self._order = kinematics.pmodel_active_joint_indices.numpy()
        self._solved = kinematics.pmodel_controlled_joint_indices.numpy()

        from sapien import Pose as SapienPose

        self._pose = SapienPose

    def _check_frame(self, frame: str) -> None:
        if frame != "root_translation":
            raise Unknown(f"the controller's frame {frame}")

    def act(self, action: np.ndarray, qpos: np.ndarray) -> None:
        """Sets the arm's drives for an action by inverse kinematics, from the joint positions ``qpos``."""
        hand = product(self._to_root(self._root.entity_pose), pose_of(self._hand.entity_pose))
        position, quaternion = self._target(hand, action)
        target = self._pose(np.array(position, np.float32), np.array(quaternion, np.float32))
        found, success, _ = self._solve(
            self._end, target, initial_qpos=qpos[self._order], active_qmask=self._mask, max_iterations=100
        )
        goal = found[self._solved].astype(np.float32) if success else qpos[self._joints.indices]
        self._joints.drive(goal.tolist())

    def _target(self, hand: Pose, action: np.ndarray) -> Pose:
        return product((tuple(self._scale(action)), (ONE, *np.zeros(3, np.float32))), hand)


class DeltaHandPose(DeltaHand):
    """``PDEEPoseController`` with ``use_delta``: turns the hand as well."""

    def __init__(self, controller: Any) -> None:
        super().__init__(controller)
        self._turn = np.float32(controller.config.rot_lower)
        self._norm, self._quaternions = Norm(3), Quaternions()

    def _check_frame(self, frame: str) -> None:
        if frame != "root_translation:root_aligned_body_rotation":
            raise Unknown(f"the controller's frame {frame}")

    def _target(self, hand: Pose, action: np.ndarray) -> Pose:
        moved = tuple(self._scale(action[:3]))
        turned = multiply(self._quaternions.of_euler(self._angles(action[3:])), hand[1])
        return add(hand[0], moved), turned

    def _angles(self, action: np.ndarray) -> Numbers:
        norm = self._norm(action)
        return tuple((action * (ONE / norm) if norm > 1 else action) * self._turn)


class Control:
    """Sets a Panda's drive targets for an action, as ``agent.set_action`` does.

    Raises:
        Unknown: the agent's controllers are others than those above.
    """

    def __init__(self, agent: Any) -> None:
        parts = _parts(agent)
        self._robot = agent.robot._objs[0]
        mapping = agent.controller.action_mapping
        self._parts = [(slice(*mapping[name]), part) for name, part in parts.items()]
        self.dims = max(end for _, end in mapping.values())

    def act(self, action: np.ndarray) -> None:
        """Sets the drives for ``action`` float32 [A], finite."""
        qpos = self._robot.qpos
        for own, part in self._parts:
            part.act(action[own], qpos)


def check_robot(env: Any) -> None:
    """Raises :class:`Unknown` if the robot is no Panda."""
    from mani_skill.agents.robots.panda import Panda, PandaWristCam

    if type(env.agent) not in (Panda, PandaWristCam):
        raise Unknown(f"the robot {env.robot_uids}")


def _parts(agent: Any) -> dict[str, Any]:
    from mani_skill.agents.controllers.base_controller import CombinedController
    from mani_skill.agents.controllers.pd_ee_pose import PDEEPosController, PDEEPoseController
    from mani_skill.agents.controllers.pd_joint_pos import PDJointPosController, PDJointPosMimicController

    known: dict[type, Callable[[Any], Any]] = {
        PDJointPosController: DeltaJoints,
        PDJointPosMimicController: Gripper,
        PDEEPosController: DeltaHand,
        PDEEPoseController: DeltaHandPose,
    }
    if type(agent.controller) is not CombinedController:
        raise Unknown(f"the controller {type(agent.controller).__name__}")
    parts = {}
    for name, controller in agent.controller.controllers.items():
        kind = getattr(type(controller), "uncached", type(controller))
        if kind not in known:
            raise Unknown(f"the controller {kind.__name__}")
        parts[name] = known[kind](controller)
    return parts
