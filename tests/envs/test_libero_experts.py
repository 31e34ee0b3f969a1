"""The grasps that are found for boxes, and the script on a scene without physics."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from embodied.envs.libero import LiberoEnv, experts, grasps
from embodied.envs.libero.experts import action_towards
from embodied.envs.libero.grasps import Boxes, Grasp, clear_height, directions, hand_points, plan, turn_to

BASE = np.array([-0.6, 0.0, 0.0])
NOTHING = Boxes(np.zeros((0, 3)), np.zeros((0, 3, 3)), np.zeros((0, 3)))


def turned(angle: float) -> np.ndarray:
    along, across = directions(angle)
    return np.stack([along, across, [0, 0, 1.0]], axis=1)


def box(center: tuple[float, float, float], half: tuple[float, float, float], angle: float = 0.0) -> Boxes:
    return Boxes(np.array([center]), turned(angle)[None], np.array([half]))


def together(*parts: Boxes) -> Boxes:
    return Boxes(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("centers", "axes", "halves")))


def bowl(x: float, y: float, radius: float = 0.055) -> Boxes:
    """A wall of 24 plates around a floor, 5 cm high."""
    walls = []
    for angle in np.linspace(0, 2 * math.pi, 24, endpoint=False):
        along, _ = directions(angle)
        place = np.array([x, y, 0.025]) + radius * along
        walls.append(box(tuple(place), (0.001, 0.009, 0.025), float(angle)))
    return together(box((x, y, 0.003), (0.03, 0.03, 0.003)), *walls)


def test_corners_and_what_is_around_a_turned_box():
    thing = box((1.0, 2.0, 3.0), (0.3, 0.2, 0.1), math.pi / 2)
    corners = thing.corners()[0]
    assert np.allclose(corners.min(0), [0.8, 1.7, 2.9])
    assert np.allclose(corners.max(0), [1.2, 2.3, 3.1])
    points = np.array([[1.0, 2.29, 3.0], [1.29, 2.0, 3.0], [1.21, 2.0, 3.0]])
    assert thing.around(points, 0.0).tolist() == [True, False, False]
    assert thing.around(points, 0.02).tolist() == [True, False, True]
    assert not NOTHING.around(points, 1.0).any()
    assert len(together(thing, box((0, 0, 0), (1, 1, 1))).between(0.5, 2.0).centers) == 1


@pytest.mark.parametrize("angle", [0.0, 0.4, 1.2, 2.5])
def test_a_bar_is_grasped_across_its_narrow_side_in_its_middle(angle):
    grasp = plan(box((0.1, -0.2, 0.05), (0.06, 0.02, 0.02), angle), NOTHING, heading=0.3, base=BASE)
    assert abs(turn_to(angle + math.pi / 2, grasp.angle)) <= math.pi / 16 + 1e-9, "sixteen angles are tried"
    assert np.allclose(grasp.position, [0.1, -0.2, 0.05], atol=1e-9)


def test_heights_of_grasps():
    def height(half: float) -> float:
        return plan(box((0, 0, half), (0.02, 0.03, half)), NOTHING, 0.0, BASE).position[2]

    assert height(0.03) == pytest.approx(0.03), "the middle"
    assert height(0.004) == pytest.approx(grasps.TIP), "the tips stay above what it lies on"
    assert height(0.075) == pytest.approx(0.15 - grasps.REACH), "the hand stays above the top"


def test_a_bowl_is_grasped_at_its_rim_with_little_turn_on_the_side_of_the_robot():
    grasp = plan(bowl(0.3, 0.1), NOTHING, heading=0.1, base=BASE)
    aside = grasp.position[:2] - [0.3, 0.1]
    assert np.linalg.norm(aside) == pytest.approx(0.056, abs=0.002)
    assert abs(turn_to(math.atan2(aside[1], aside[0]), grasp.angle)) < 1e-6, "across the wall"
    assert abs(turn_to(0.1, grasp.angle)) < math.pi / 24 + 1e-6
    assert grasp.position[2] == pytest.approx(0.05 - grasps.RIM)
    assert aside[0] < 0, "and not on the side beyond"
    assert plan(bowl(0.3, 0.1), NOTHING, heading=0.1, base=-BASE).position[0] > 0.3


def test_a_mug_is_grasped_beside_its_handle():
    handle = box((0.3, 0.02, 0.035), (0.004, 0.03, 0.02))
    for grasp in grasps.at_its_rim(together(bowl(0.3, 0.1), handle)):
        aside = grasp.position[:2] - [0.3, 0.1]
        assert np.linalg.norm(aside) == pytest.approx(0.056, abs=0.008), "the wall, seen from the middle of the foot"
        assert aside[1] > -0.05, "and not the handle"
    assert len(grasps.at_its_rim(bowl(0.3, 0.1))) == 24


def test_a_grasp_keeps_out_of_what_stands_beside():
    """The side that would be taken is walled, so another is; open fingers and hand meet nothing there."""
    thing = bowl(0.0, 0.0)
    free = plan(thing, NOTHING, heading=0.0, base=BASE)
    along, _ = directions(free.angle)
    walls = together(*(box(tuple(side * 0.09 * along + [0, 0, 0.1]), (0.01, 0.05, 0.1)) for side in (-1, 1)))
    beside = plan(thing, walls, heading=0.0, base=BASE)
    assert walls.around(hand_points(free), 0.0).any()
    assert not walls.around(hand_points(beside), 0.0).any()
    assert abs(turn_to(free.angle, beside.angle)) > 0.5


@pytest.mark.parametrize(
    ("start", "end", "least"), [(0.0, 0.2, 0.2), (0.0, math.pi, 0.0), (0.1, math.pi, -0.1), (0.0, 3.0, 3.0 - math.pi)]
)
def test_opposite_angles_are_one_grasp(start, end, least):
    assert turn_to(start, end) == pytest.approx(least)


def test_what_is_passed_over():
    others = together(box((0.5, 0.0, 0.1), (0.05, 0.05, 0.1)), box((0.5, 0.3, 0.2), (0.05, 0.05, 0.2)))
    start, end = np.array([0.0, 0.0, 0.3]), np.array([1.0, 0.0, 0.0])
    assert clear_height(others, start, end, 0.1) == pytest.approx(0.2)
    assert clear_height(others, start, end, 0.26) == pytest.approx(0.4)
    assert clear_height(others, start, np.array([0.2, 0.0, 0.0]), 0.1) == -math.inf


def test_an_action_moves_and_turns_the_hand_to_its_target():
    down = np.stack([[0, 1.0, 0], [1.0, 0, 0], [0, 0, -1.0]], axis=1)  # fingers close along y
    still = action_towards((np.zeros(3), math.pi / 2, 1.0), np.zeros(3), down)
    assert still.dtype == np.float32
    assert np.allclose(still, [0, 0, 0, 0, 0, 0, 1])
    moved = action_towards((np.array([0.01, -1.0, 0]), math.pi / 2, -1.0), np.zeros(3), down)
    assert np.allclose(moved, [0.2, -1, 0, 0, 0, 0, -1], atol=1e-6)
    left = action_towards((np.zeros(3), math.pi / 2 + 0.1, 1.0), np.zeros(3), down)
    assert np.allclose(left[3:6], [0, 0, experts.TURN_GAIN * math.sin(0.1)], atol=1e-6), "about the world's z"


class FreeHand:
    """A scene without physics: the hand goes where it is told, and holds what it closes around."""

    def __init__(self, slips: int = 0) -> None:
        self.position, self.angle = np.array([-0.2, 0.0, 0.3]), 0.9
        self.places = {"cube": np.array([0.0, 0.1, 0.02]), "tray": np.array([0.2, -0.2, 0.01])}
        self.slips, self._closed, self._held = slips, 0, False

    def hand(self) -> tuple[np.ndarray, np.ndarray]:
        return self.position.copy(), turned(self.angle) @ np.diag([1.0, -1, -1])

    def base(self) -> np.ndarray:
        return BASE

    def goals(self) -> list[list[str]]:
        return [["on", "cube", "tray"]]

    def reached(self, goal: list[str]) -> bool:
        cube, tray = (self.places[name] for name in goal[1:])
        return not self._held and bool(np.linalg.norm((cube - tray)[:2]) < 0.02 and cube[2] < 0.06)

    def place(self, name: str) -> np.ndarray:
        return self.places[name].copy()

    def boxes(self, name: str) -> Boxes:
        return box(tuple(self.places[name]), (0.02, 0.02, 0.02) if name == "cube" else (0.05, 0.05, 0.01))

    def obstacles(self, name: str) -> Boxes:
        return together(self.boxes("tray"), box((0.1, 0.0, 0.1), (0.01, 0.2, 0.1)))

    def step(self, action: np.ndarray) -> None:
        wall = self.obstacles("cube").around(self.position[None], 0.0)
        assert not wall.any(), "the hand is in the wall"
        self.position = self.position + 0.3 * action[:3] / experts.GAIN
        self.angle += 0.3 * action[5] / experts.TURN_GAIN
        self._closed = self._closed + 1 if action[6] > 0 else 0
        near = np.linalg.norm(self.position - self.places["cube"]) < 0.02
        if self._closed == 5 and near:
            assert abs(math.sin(2 * self.angle)) < 0.4, "across two sides of the cube"
            self._held, self.slips = self.slips == 0, max(self.slips - 1, 0)
        self._held = self._held and self._closed > 0
        if self._held:
            self.places["cube"] = self.position.copy()


def play(scene: FreeHand, most: int = 600) -> Iterator[np.ndarray]:
    for count, action in enumerate(experts.actions(scene)):
        assert count < most, "it does not come to an end"
        yield action
        scene.step(action)


def test_the_script_carries_the_object_over_a_wall_and_ends():
    scene = FreeHand()
    done = np.stack(list(play(scene)))
    assert scene.reached(["on", "cube", "tray"])
    assert len(done) < 200
    assert done.dtype == np.float32
    assert np.abs(done).max() <= 1
    assert set(done[:, 6]) == {-1.0, 1.0}


def test_by_mistake_the_second_of_a_kind_is_taken_or_what_is_nearest():
    scene = FreeHand()
    near, far = scene.position, scene.position + 0.3
    scene.movable = lambda: [*scene.places]
    scene.places = {"bowl_1": near, "bowl_2": far, "soup_1": near + 0.1, "plate_1": near}
    assert experts.other_than(scene, "bowl_1", "plate_1_region") == "bowl_2"
    assert experts.other_than(scene, "soup_1", "plate_1_region") == "bowl_1"


def test_the_script_grasps_again_what_slipped():
    scene = FreeHand(slips=2)
    list(play(scene))
    assert scene.slips == 0
    assert scene.reached(["on", "cube", "tray"])


@pytest.mark.parametrize(
    ("suite", "tasks", "has"),
    [("libero_object", None, True), ("libero_spatial", [3], True), ("libero_goal", None, False),
     ("libero_goal", [1, 9], True), ("libero_goal", [1, 0], False), ("libero_10", [6], True),
     ("libero_10", [2], False), ("libero_90", None, False), ("libero_goal_swap", [1], False)],
)  # fmt: skip
def test_only_tasks_that_are_solved_have_an_expert(suite, tasks, has):
    env = LiberoEnv(suite, task_ids=tasks)
    assert hasattr(env, "expert") == has
    assert "libero_spatial and libero_goal with task_ids 1, 2, 4, 6, 8, 9 and" in env.experts


def test_a_grasp_is_described_by_its_points():
    points = hand_points(Grasp(np.array([1.0, 2.0, 3.0]), 0.0))
    assert np.allclose(points.min(0), [0.9, 1.97, 3 - grasps.TIP])
    fingers = points[points[:, 2] < 3 + grasps.PALM]
    assert np.abs(fingers[:, 0] - 1).min() == pytest.approx(0.032), "between the fingers there is room"
