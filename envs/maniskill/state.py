"""Reads the numbers that ManiSkill gives beside its pictures. Only for the worker: imports torch when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied.errors import SpecMismatchError

from ..shared.rotations import axis_angle


def read_state(env: Any) -> dict[str, np.ndarray]:
    """Reads ManiSkill's observation without pictures: fields [N, n] of N copies, as in its visual observation modes.

    These are the robot's proprioception and what belongs to the task (``goal_pos``), but no poses of objects.
    ``proprio`` is made of them: gripper position, axis-angle and both fingers, as in LIBERO's state. The values leave
    the device in one copy.
    """
    import torch

    seen: dict[str, Any] = {}
    _flatten({**env._get_obs_agent(), **env._get_obs_extra(env.get_info())}, seen)
    columns = [
        torch.as_tensor(value, device=env.device).to(torch.float32).reshape(env.num_envs, -1) for value in seen.values()
    ]
    ends = np.cumsum([column.shape[1] for column in columns])
    values = torch.cat(columns, dim=1).cpu().numpy()
    found = dict(zip(seen, np.split(values, ends[:-1], axis=1), strict=True))
    if "tcp_pose" in found and found["tcp_pose"].shape[1] == 7 and found["qpos"].shape[1] > 2:
        found["proprio"] = np.stack([proprio(*row) for row in zip(found["tcp_pose"], found["qpos"], strict=True)])
    return found


def num_features(bodies: int, joints: int) -> int:
    """Returns the number of progress features with room for so many bodies and joints of other articulations."""
    return 11 + 9 * bodies + joints


def read_features(env: Any, bodies: int, joints: int) -> np.ndarray:
    """Reads progress features as :class:`embodied.envs.maniskill.ManiSkillEnv` orders them: float32
    [N, num_features(bodies, joints)] of N copies. They leave the device in one copy.

    Raises:
        SpecMismatchError: there are more bodies or joints, or one that only some of the copies have.
    """
    import torch

    agent = env.agent
    tcp = getattr(agent, "tcp", None)  # robots without a gripper have none
    hand = torch.zeros(env.num_envs, 7, device=env.device) if tcp is None else tcp.pose.raw_pose
    others = torch.cat([torch.zeros(env.num_envs, 0, device=env.device), *other_joints(env)], dim=1)
    columns = [agent.robot.get_qpos()[:, -2:], others, hand, *body_poses(env)]
    for kind, have, room in ("bodies", len(columns) - 3, bodies), ("joints", others.shape[1], joints):
        if have > room:
            raise _unreadable(f"a start has {have} {kind} that may move, and the task had {room} when it was asked")
    fingers, doors, *poses = np.split(
        torch.cat(columns, dim=1).cpu().numpy(), np.cumsum([column.shape[1] for column in columns])[:-1], axis=1
    )
    found = np.zeros((env.num_envs, num_features(bodies, joints)), np.float32)
    for number, pose in enumerate(poses):
        found[:, 9 * number : 9 * number + 9] = np.concatenate([pose[:, :3], _two_rows(pose[:, 3:])], axis=1)
    found[:, 9 * bodies + 9 :][:, : fingers.shape[1]] = fingers
    found[:, 9 * bodies + 11 :][:, : doors.shape[1]] = doors
    return found


def body_poses(env: Any) -> list[Any]:
    """Reads the poses [N, 7] of bodies that are not static. One that was built anew for each copy counts once, by the
    task's view of all of them (``Actor.merge``)."""
    moving = [body for body in env.scene.actors.values() if body.px_body_type != "static"]
    whole = [body for body in moving if len(body._objs) == env.num_envs]
    read, poses = {id(one) for body in whole for one in body._objs}, [body.pose.raw_pose for body in whole]
    for view in env.scene.actor_views.values():
        if len(view._objs) == env.num_envs and not read & {id(one) for one in view._objs}:
            read |= {id(one) for one in view._objs}
            poses.append(view.pose.raw_pose[view._scene_idxs.argsort()])
    for body in moving:
        if not {id(one) for one in body._objs} <= read:
            raise _unreadable(f"the body {body.name} is in some copies of the task alone")
    return poses


def other_joints(env: Any) -> list[Any]:
    """Reads the joints [N, J] of each articulation beside the robot."""
    robot = getattr(env.agent, "robot", None)  # several agents have no one robot
    others = [one for one in env.scene.articulations.values() if one is not robot]
    for other in others:
        if len(other._objs) != env.num_envs:
            raise _unreadable(f"the articulation {other.name} is in some copies of the task alone")
    return [other.get_qpos() for other in others]


def _unreadable(fault: str) -> SpecMismatchError:
    return SpecMismatchError(
        f"{fault}, so ManiSkill's progress_features cannot be read",
        "set env.train.reward_mode=sparse or dense, or take another task",
    )


def _two_rows(quaternions: np.ndarray) -> np.ndarray:
    """Two rows of the rotation matrices of quaternions [N, 4] (w, x, y, z): [N, 6]."""
    w, x, y, z = quaternions.T
    rows = (
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
    )  # fmt: skip
    return np.stack(rows, axis=1)


def proprio(tcp_pose: np.ndarray, qpos: np.ndarray) -> np.ndarray:
    """Returns the proprioception [8]: gripper position, axis-angle and both fingers, from the gripper's pose [7] and
    the joints."""
    w, x, y, z = map(float, tcp_pose[3:])
    return np.concatenate([tcp_pose[:3], axis_angle(x, y, z, w), qpos[-2:]])


def _flatten(tree: Mapping[str, Any], found: dict[str, Any]) -> None:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _flatten(value, found)
        else:
            found[name] = value
