"""Scripted policies for some ManiSkill tasks, for demonstrations. They read poses of objects from the simulator.

Each is a generator of waypoints ``(position of the gripper in m, gripper −1 closed … +1 open)``. It reads the state
anew for each waypoint and ends when it has no further idea.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

OPEN, CLOSED = 1.0, -1.0
CONTROL_MODES = ("pd_ee_delta_pos", "pd_ee_delta_pose")
STEP_M = 0.1  # distance that an action of 1 asks for
GAIN = 2.0  # the controller reaches about half of what it is asked for within a control step
Waypoints = Iterator[tuple[np.ndarray, float]]


def action_towards(target: np.ndarray, hand: np.ndarray, gripper: float, dims: int) -> np.ndarray:
    """Computes the action float32 [4] or [7] that moves the gripper towards a position (m), without turning it."""
    move = np.clip(GAIN * (target - hand) / STEP_M, -1, 1)
    return np.concatenate([move, np.zeros(dims - 4), [gripper]]).astype(np.float32)


def within_reach(sim: Any, action: np.ndarray) -> np.ndarray:
    """Shortens an expert's action to what the arm can follow: itself, half, a quarter or an eighth of it.

    ManiSkill's controller does not move at all towards a point for which it finds no joint positions, and near the end
    of its reach a whole step asks for one. An expert that went on asking would stand still, and teach to stand still.
    """
    arm = sim.agent.controller.controllers["arm"]
    for share in (1.0, 0.5, 0.25, 0.125):
        shorter = np.concatenate([share * action[:-1], action[-1:]]).astype(np.float32)
        asked = arm._preprocess_action(arm.qpos.new_tensor(shorter[None, :-1]))
        here = arm.ee_pose_at_base
        found = arm.kinematics.compute_ik(
            pose=arm.compute_target_pose(here, asked), q0=arm.articulation.get_qpos(), current_pose=here,
            solver_config=arm.config.delta_solver_config,
        )  # fmt: skip
        if found is not None:
            return shorter
    return action


def hand_of(sim: Any) -> np.ndarray:
    """Returns the position [3] (m) of the point between the fingers."""
    return _position(sim.agent.tcp)


def _position(thing: Any) -> np.ndarray:
    return thing.pose.p[0].cpu().numpy().astype(float)


def _go(sim: Any, target: Callable[[], np.ndarray], gripper: float, near_m: float, steps: int) -> Waypoints:
    """Moves until the gripper is near, for at most ``steps``."""
    for _ in range(steps):
        if np.linalg.norm(target() - hand_of(sim)) < near_m:
            return
        yield target(), gripper


def _stay(sim: Any, gripper: float, steps: int) -> Waypoints:
    here = hand_of(sim)
    for _ in range(steps):
        yield here, gripper


def _up(metres: float) -> np.ndarray:
    return np.array([0.0, 0.0, metres])


def _grasp(sim: Any, thing: Any) -> Waypoints:
    """Grasps from above."""
    yield from _go(sim, lambda: _position(thing) + _up(0.06), OPEN, 0.02, 20)
    yield from _go(sim, lambda: _position(thing), OPEN, 0.008, 15)
    yield from _stay(sim, CLOSED, 3)


def pick_cube(sim: Any) -> Waypoints:
    """Scripted expert of PickCube: grasps the cube and carries it to the goal."""
    yield from _grasp(sim, sim.cube)
    while True:  # the cube, not the hand, is to be at the goal
        yield hand_of(sim) + _position(sim.goal_site) - _position(sim.cube), CLOSED


def push_cube(sim: Any) -> Waypoints:
    """Scripted expert of PushCube: goes behind the cube (nearer to the robot), down to the table, and forwards."""
    behind = np.array([-0.09, 0.0, 0.0])
    yield from _go(sim, lambda: _position(sim.obj) + behind + _up(0.06), CLOSED, 0.03, 20)
    yield from _go(sim, lambda: _position(sim.obj) + behind, CLOSED, 0.015, 12)
    while True:
        cube, goal = _position(sim.obj), _position(sim.goal_region)
        yield np.array([goal[0] - 0.03, cube[1], cube[2]]), CLOSED


def pull_cube(sim: Any) -> Waypoints:
    """Scripted expert of PullCube: goes beyond the cube, down to the table, and back."""
    beyond = np.array([0.07, 0.0, 0.0])
    yield from _go(sim, lambda: _position(sim.obj) + beyond + _up(0.08), CLOSED, 0.03, 20)
    yield from _go(sim, lambda: _position(sim.obj) + beyond, CLOSED, 0.015, 12)
    while True:
        cube, goal = _position(sim.obj), _position(sim.goal_region)
        yield np.array([goal[0] + 0.03, cube[1], cube[2]]), CLOSED


def stack_cube(sim: Any) -> Waypoints:
    """Scripted expert of StackCube: grasps one cube, carries it over the other, lowers and opens."""
    yield from _grasp(sim, sim.cubeA)

    def above(metres: float) -> Callable[[], np.ndarray]:
        return lambda: hand_of(sim) + _position(sim.cubeB) + _up(metres) - _position(sim.cubeA)

    yield from _go(sim, lambda: hand_of(sim) + _up(0.09 - _position(sim.cubeA)[2]), CLOSED, 0.02, 10)
    yield from _go(sim, above(0.07), CLOSED, 0.012, 20)
    yield from _go(sim, above(0.042), CLOSED, 0.006, 12)
    yield from _stay(sim, OPEN, 3)
    aside = hand_of(sim) + _up(0.1)
    while True:
        yield aside, OPEN


EXPERTS: dict[str, Callable[[Any], Waypoints]] = {
    "PickCube-v1": pick_cube,
    "PushCube-v1": push_cube,
    "PullCube-v1": pull_cube,
    "StackCube-v1": stack_cube,
}
