"""``evaluate`` and ``compute_normalized_dense_reward`` of four ManiSkill tasks, for one scene on the CPU.

Source: mani_skill 3.0.1, ``envs/tasks/tabletop/``. A task's class reads what it needs once for each episode. Then, for
each state, ``evaluate()`` comes first and ``reward(info)`` uses what it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from .controllers import Unknown
from .grasp import Grasp
from .numbers import (
    ONE,
    TWO,
    Function,
    Norm,
    Number,
    Remembered,
    inverse,
    pose_of,
    pose_of_row,
    position_of_product,
    product,
)

Info = dict[str, Any]
FOUR, FIVE, SIX, TEN, HALF = (np.float32(x) for x in (4, 5, 6, 10, 0.5))


class Task(Protocol):
    """Interface of a task whose success and reward are computed here, bit by bit as ManiSkill computes them."""

    def evaluate(self) -> Info:
        """Computes the entries of ManiSkill's ``info``: bool, or float32 [n]."""

    def reward(self, info: Info) -> Number:
        """Computes ``compute_normalized_dense_reward``, float32."""

    def observation_readers(self) -> dict[str, Callable[[], Any]]:
        """Returns functions that read the fields of ``_get_obs_extra`` in visual observation modes."""


class PickCube(Task):
    """ManiSkill's PickCube-v1."""

    def __init__(self, env: Any) -> None:
        if env.robot_uids != "panda":
            raise Unknown(f"{type(env).__name__} with the robot {env.robot_uids}")
        self._cube, self._goal, self._hand = env.cube._objs[0], env.goal_site._objs[0], env.agent.tcp._objs[0]
        self._robot, self._grasp = env.agent.robot._objs[0], Grasp(env, env.cube)
        self._near, self._still = np.float32(env.goal_thresh), np.float32(0.2)
        self._norm, self._qvel_norm, self._tanh = Norm(3), Norm(7), Function("tanh")

    def evaluate(self) -> Info:
        self._cube_at, self._qvel = self._cube.pose.p, self._robot.qvel[:-2]
        self._to_goal = self._norm.of_difference(self._goal.pose.p, self._cube_at)
        placed, static = bool(self._to_goal <= self._near), bool(np.abs(self._qvel).max() <= self._still)
        return {
            "success": placed and static,
            "is_obj_placed": placed,
            "is_robot_static": static,
            "is_grasped": self._grasp.holds(),
        }

    def reward(self, info: Info) -> Number:
        if info["success"]:
            return FIVE / FIVE
        grasped, placed = np.float32(info["is_grasped"]), np.float32(info["is_obj_placed"])
        to_cube = self._norm.of_difference(self._cube_at, self._hand.entity_pose.p)
        reward = ONE - self._tanh(FIVE * to_cube)
        reward += grasped
        reward += (ONE - self._tanh(FIVE * self._to_goal)) * grasped
        reward += (ONE - self._tanh(FIVE * self._qvel_norm(self._qvel))) * placed
        return reward / FIVE

    def observation_readers(self) -> dict[str, Callable[[], Any]]:
        return {"is_grasped": self._grasp.holds, "goal_pos": lambda: self._goal.pose.p}


class PullCube(Task):
    """ManiSkill's PullCube-v1."""

    def __init__(self, env: Any) -> None:
        self._cube, self._goal, self._hand = env.obj._objs[0], env.goal_region._objs[0], env.agent.tcp._objs[0]
        self._beyond = np.array([env.cube_half_size + 2 * 0.005, 0, 0], np.float32)
        self._radius, self._reached = np.float32(env.goal_radius), np.float32(0.01)
        self._norm, self._flat_norm, self._tanh = Norm(3), Norm(2), Function("tanh")

    def evaluate(self) -> Info:
        self._cube_at = self._cube.pose.p
        self._to_goal = self._flat_norm.of_difference(self._cube_at[:2], self._goal.pose.p[:2])
        return {"success": bool(self._to_goal < self._radius)}

    def reward(self, info: Info) -> Number:
        three = np.float32(3)
        if info["success"]:
            return three / three
        distance = self._norm.of_difference(self._cube_at + self._beyond, self._hand.entity_pose.p)
        reward = ONE - self._tanh(FIVE * distance)
        reward += (ONE - self._tanh(FIVE * self._to_goal)) * np.float32(distance < self._reached)
        return reward / three

    def observation_readers(self) -> dict[str, Callable[[], Any]]:
        return {"goal_pos": lambda: self._goal.pose.p}


class StackCube(Task):
    """ManiSkill's StackCube-v1."""

    def __init__(self, env: Any) -> None:
        import torch

        self._a, self._b, self._hand = env.cubeA._objs[0], env.cubeB._objs[0], env.agent.tcp._objs[0]
        self._body, self._robot = env.cubeA._bodies[0], env.agent.robot._objs[0]
        self._grasp = Grasp(env, env.cubeA)
        self._beside = (torch.linalg.norm(env.cube_half_size[:2]) + 0.005).numpy()[()]
        self._height = (env.cube_half_size[2] * 2).numpy()[()]
        self._width = (env.agent.robot.get_qlimits()[0, -1, 1] * 2).numpy()[()]
        self._off, self._slow, self._turning = np.float32(0.005), np.float32(1e-2), HALF
        self._norm, self._flat_norm, self._tanh = Norm(3), Norm(2), Function("tanh")

    def evaluate(self) -> Info:
        a, b = self._a_at, self._b_at = self._a.pose.p, self._b.pose.p
        beside, above = self._flat_norm.of_difference(a[:2], b[:2]), a[2] - b[2]
        on = bool(beside <= self._beside and np.abs(above - self._height) <= self._off)
        self._speed, self._turn = self._norm(self._body.linear_velocity), self._norm(self._body.angular_velocity)
        static = bool(self._speed <= self._slow and self._turn <= self._turning)
        grasped = self._grasp.holds()
        return {
            "is_cubeA_grasped": grasped,
            "is_cubeA_on_cubeB": on,
            "is_cubeA_static": static,
            "success": on and static and not grasped,
        }

    def reward(self, info: Info) -> Number:
        eight = np.float32(8)
        if info["success"]:
            return eight / eight
        if info["is_cubeA_on_cubeB"]:
            fingers = self._robot.qpos[-2:]
            ungrasp = (fingers[0] + fingers[1]) / self._width if info["is_cubeA_grasped"] else ONE
            static = ONE - self._tanh(self._speed * TEN + self._turn)
            return (SIX + (ungrasp + static) / TWO) / eight
        if info["is_cubeA_grasped"]:
            goal = self._b_at.copy()
            goal[2] += self._height
            return (FOUR + (ONE - self._tanh(FIVE * self._norm.of_difference(goal, self._a_at)))) / eight
        to_cube = self._norm.of_difference(self._hand.entity_pose.p, self._a_at)
        return TWO * (ONE - self._tanh(FIVE * to_cube)) / eight

    def observation_readers(self) -> dict[str, Callable[[], Any]]:
        return {}


class PegInsertionSide(Task):
    """ManiSkill's PegInsertionSide-v1."""

    def __init__(self, env: Any) -> None:
        self._peg, self._box, self._hand = env.peg._objs[0], env.box._objs[0], env.agent.tcp._objs[0]
        self._grasp = Grasp(env, env.peg, max_angle=20)
        self._head = pose_of_row(env.peg_head_offsets)
        hole, from_head = pose_of_row(env.box_hole_offsets), pose_of_row(env.peg_head_offsets.inv())
        self._to_hole = Remembered(lambda box: inverse(product(box, hole)))
        self._to_goal = Remembered(lambda box: inverse(product(product(box, hole), from_head)))
        self._radius = env.box_hole_radii.numpy()[0]
        self._behind = ((np.float32(-0.06), *np.zeros(2, np.float32)), (ONE, *np.zeros(3, np.float32)))
        self._depth, self._lined_up = np.float32(-0.015), np.float32(0.01)
        self._norm, self._flat_norm, self._tanh = Norm(3), Norm(2), Function("tanh")

    def evaluate(self) -> Info:
        self._peg_at, self._box_at = pose_of(self._peg.pose), self._box.pose
        self._head_at = product(self._peg_at, self._head)
        self._in_hole = x, y, z = position_of_product(self._to_hole(self._box_at), self._head_at)
        inserted = x >= self._depth and -self._radius <= y <= self._radius and -self._radius <= z <= self._radius
        return {"success": bool(inserted), "peg_head_pos_at_hole": np.array(self._in_hole, np.float32)}

    def reward(self, info: Info) -> Number:
        if info["success"]:
            return TEN / TEN
        grasped = self._grasp.holds()
        tail = position_of_product(self._peg_at, self._behind)
        reaching = self._norm.of_difference(self._hand.entity_pose.p, np.array(tail, np.float32))
        reward = ONE - self._tanh(FOUR * reaching)
        if grasped:
            reward += ONE
            to_goal = self._to_goal(self._box_at)
            head, peg = (
                self._flat_norm(position_of_product(to_goal, pose)[1:]) for pose in (self._head_at, self._peg_at)
            )
            off = HALF * (head + peg) + np.float32(4.5) * np.maximum(head, peg)
            reward += np.float32(3) * (ONE - self._tanh(off))
            if head < self._lined_up and peg < self._lined_up:
                reward += FIVE * (ONE - self._tanh(FIVE * self._norm(self._in_hole)))
        return reward / TEN

    def observation_readers(self) -> dict[str, Callable[[], Any]]:
        return {}


KNOWN: Mapping[str, Callable[[Any], Task]] = {
    "PickCubeEnv": PickCube,
    "PullCubeEnv": PullCube,
    "StackCubeEnv": StackCube,
    "PegInsertionSideEnv": PegInsertionSide,
}
"""By the names of ManiSkill's classes."""


def is_known(env: Any) -> bool:
    """Returns whether the env's task is one of those above, and no subclass of it."""
    from mani_skill.envs import tasks

    name = type(env).__name__
    return name in KNOWN and type(env) is getattr(tasks, name, None)


def task_of(env: Any) -> Task:
    """Makes the reproduced task of an env. Raises :class:`Unknown` if it is none of those above."""
    if not is_known(env):
        raise Unknown(f"the task {type(env).__name__}")
    if env.reward_mode != "normalized_dense":
        raise Unknown(f"the reward {env.reward_mode}")
    return KNOWN[type(env).__name__](env)
