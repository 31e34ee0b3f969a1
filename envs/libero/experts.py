"""A scripted pick-and-place policy for LIBERO, for demonstrations. It reads objects and obstacles from the simulator.

    over the object ─▶ down ─▶ close ─▶ up ─▶ over the target ─▶ down ─▶ open ─▶ up;  again if it failed

Where to grasp follows from the boxes that objects consist of in MuJoCo's collisions (``grasps``). An episode
takes 70 to 130 control steps, with two objects 140 to 240. With noise of 0.1 the flat cream cheese was grasped in
libero_object, and in libero_10 together with the butter in nine of ten attempts; with 0.3 not within 280 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from .grasps import TIP, Boxes, clear_height, directions, plan, turn_to

OPEN, CLOSED = -1.0, 1.0
GAIN = 20.0  # 1/m: full speed, 1.5 cm a control step, until 5 cm before the target
TURN_GAIN = 4.0  # 1/rad
SAFE = 0.03  # m above what is passed over
CLOSING, OPENING = 10, 6  # control steps
PATIENCE = 8  # control steps without coming nearer, after which the hand is where it can be
METRES_PER_TURN = 0.1  # 1 rad off is as bad as this many metres
SOLVED: Mapping[str, tuple[int, ...]] = {
    "libero_object": tuple(range(10)),
    "libero_spatial": tuple(range(10)),
    "libero_goal": (1, 2, 4, 6, 8, 9),
    "libero_10": (0, 1, 4, 5, 6, 7),
}
"""Tasks whose goals are all ``in`` or ``on``, that were tried. The others of these suites have drawers, doors and
switches, a plate that must be pushed, and two moka pots that are too wide for the hand."""
Move = tuple[np.ndarray, float, float]  # position of the point between the fingers (m), their angle (rad), gripper


def solves(suite: str, task_ids: Sequence[int] | None) -> bool:
    """Returns whether the scripted expert was tried on all these tasks of a suite; None = all that it has."""
    return suite in SOLVED and set(range(10) if task_ids is None else task_ids) <= set(SOLVED[suite])


def solved() -> str:
    """Names the tasks that the scripted expert solves, for a message."""
    found = (
        suite if len(ids) == 10 else f"{suite} with task_ids {', '.join(map(str, ids))}"
        for suite, ids in SOLVED.items()
    )
    return " and ".join(found)


class Scene(Protocol):
    """The scene that the script reads, of :class:`~.simulator.TaskSimulator`. Positions in m, in the world's frame."""

    def hand(self) -> tuple[np.ndarray, np.ndarray]:
        """Position [3] of the point between the fingers, and the hand's axes [3, 3] as columns: the fingers close
        along the first, and it points along the third."""
        ...

    def base(self) -> np.ndarray:
        """Position [3] of the robot's base."""
        ...

    def goals(self) -> list[list[str]]:
        """Predicates, each with object and target: ``["on", "bowl_1", "plate_1"]``."""
        ...

    def reached(self, goal: list[str]) -> bool:
        """Returns whether the goal was reached by the last control step."""
        ...

    def movable(self) -> list[str]:
        """Names of the objects that can be taken, and of what they are put into."""
        ...

    def place(self, name: str) -> np.ndarray:
        """Position [3] of an object or a region."""
        ...

    def boxes(self, name: str) -> Boxes:
        """Boxes of an object; for a region, those of the object that it belongs to, or its own on the table."""
        ...

    def obstacles(self, name: str) -> Boxes:
        """Boxes of everything but this object and the robot."""
        ...


def mistaken_actions(scene: Scene) -> Iterator[np.ndarray]:
    """Yields an expert's actions that make a deliberate mistake: it takes another object than the meant one, and ends
    when that lies where the meant one should. The other is one of the same kind if there is one (the second bowl), else
    what is nearest to the hand."""
    predicate, meant, target = scene.goals()[0]
    for move in PickAndPlace(scene, [[predicate, other_than(scene, meant, target), target]]).moves():
        yield action_towards(move, *scene.hand())


def other_than(scene: Scene, meant: str, target: str) -> str:
    """Chooses the object that a mistaken expert takes."""
    hand = scene.hand()[0][:2]
    others = [name for name in scene.movable() if name != meant and not target.startswith(name)]

    def kind(name: str) -> str:
        return name.rpartition("_")[0]

    return min(
        others, key=lambda name: (kind(name) != kind(meant), float(np.linalg.norm(scene.place(name)[:2] - hand)))
    )


def actions(scene: Scene) -> Iterator[np.ndarray]:
    """Yields the scripted expert's OSC_POSE actions float32 [7] for the scene's goals. Each action reads
    the scene anew."""
    for move in PickAndPlace(scene).moves():
        yield action_towards(move, *scene.hand())


def action_towards(move: Move, position: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Computes the action float32 [7] that moves a hand with this pose towards a position, pointing down."""
    target, angle, gripper = move
    along, across = directions(angle)
    wanted = np.stack([along, -across, [0, 0, -1.0]])
    turn = np.cross(axes.T, wanted).sum(0) / 2  # axis of the rotation times the sine of its angle
    return np.clip([*GAIN * (target - position), *TURN_GAIN * turn, gripper], -1, 1).astype(np.float32)


def heading(axes: np.ndarray) -> float:
    """Returns the angle (rad, around the vertical) along which a hand's fingers close."""
    return math.atan2(axes[1, 0], axes[0, 0])


class PickAndPlace:
    """Plans pick-and-place moves of the scripted expert for a scene's goals, or for others, each from the state that
    the last one led to."""

    def __init__(self, scene: Scene, goals: Sequence[list[str]] | None = None) -> None:
        self._scene = scene
        self._goals = scene.goals() if goals is None else goals
        self._angle = heading(scene.hand()[1])

    def moves(self) -> Iterator[Move]:
        """Yields the moves."""
        for goal in self._goals:
            yield from self._transfer(*goal[1:])  # first, because goals are judged by what the last step led to
            while not self._scene.reached(goal):
                yield from self._transfer(*goal[1:])

    def _transfer(self, thing: str, target: str) -> Iterator[Move]:
        scene = self._scene
        grasp = plan(scene.boxes(thing), scene.obstacles(thing), self._angle, scene.base())
        self._angle += turn_to(self._angle, grasp.angle)
        offset = grasp.position - scene.place(thing)

        def at() -> np.ndarray:
            return scene.place(thing) + offset

        yield from self._over(at, self._height_over(thing, at()), OPEN)
        yield from self._go(at, OPEN, 0.008, 25)
        yield from self._stay(CLOSED, CLOSING)
        yield from self._up(0.06, CLOSED)
        if np.linalg.norm(at() - self._hand) < 0.03:  # the object came along with the hand
            yield from self._put(thing, target)

    def _height_over(self, thing: str, at: np.ndarray) -> float:
        passed = clear_height(self._scene.obstacles(thing), self._hand, at, 0.06)
        return max(passed, self._highest(thing)) + TIP + SAFE

    def _put(self, thing: str, target: str) -> Iterator[Move]:
        scene = self._scene
        others = scene.obstacles(thing)
        hanging = self._hand[2] - self._lowest(thing)
        goal = scene.place(target)
        over = clear_height(others, self._hand, goal, 0.09) + hanging + SAFE

        def above(height: float) -> Callable[[], np.ndarray]:
            def position() -> np.ndarray:
                aside = self._hand - scene.place(thing)
                return np.array([*(scene.place(target) + aside)[:2], height])

            return position

        yield from self._over(above(over), over, CLOSED)
        ground = clear_height(scene.boxes(target), goal, goal, 0.01)
        down = max(ground + hanging, self._highest(target) + TIP) + 0.005
        yield from self._go(above(down), CLOSED, 0.01, 30)
        yield from self._stay(OPEN, OPENING)
        yield from self._up(0.1, OPEN)

    def _over(self, target: Callable[[], np.ndarray], height: float, gripper: float) -> Iterator[Move]:
        """Moves up to the height first, and only then aside."""

        def goal() -> np.ndarray:
            return np.array([*target()[:2], height])

        for there, angle, _ in self._go(goal, gripper, 0.02, 80):
            aside = self._hand[2] > height - 0.03
            yield there if aside else np.array([*self._hand[:2], height]), angle, gripper

    def _go(self, target: Callable[[], np.ndarray], gripper: float, near: float, steps: int) -> Iterator[Move]:
        """Moves until the hand is near and turned, or comes no nearer, or ``steps`` control steps are over."""
        least, tries = math.inf, 0
        for _ in range(steps):
            position, axes = self._scene.hand()
            left = float(np.linalg.norm(target() - position)) + self._turn_left(axes)
            least, tries = (left, 0) if left < least - 0.002 else (least, tries + 1)
            if left < near or tries == PATIENCE:
                return
            yield target(), self._angle, gripper

    def _turn_left(self, axes: np.ndarray) -> float:
        return METRES_PER_TURN * abs(turn_to(heading(axes), self._angle))

    def _stay(self, gripper: float, steps: int) -> Iterator[Move]:
        here = self._hand
        for _ in range(steps):
            yield here, self._angle, gripper

    def _up(self, metres: float, gripper: float) -> Iterator[Move]:
        there = self._hand + np.array([0, 0, metres])
        yield from self._go(lambda: there, gripper, 0.02, 15)

    @property
    def _hand(self) -> np.ndarray:
        return self._scene.hand()[0]

    def _highest(self, thing: str) -> float:
        return float(self._scene.boxes(thing).corners()[:, :, 2].max())

    def _lowest(self, thing: str) -> float:
        return float(self._scene.boxes(thing).corners()[:, :, 2].min())
