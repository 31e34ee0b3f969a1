"""Perturbations of one episode, driven without a worker: what is executed, what is shown, which numbers are drawn."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from embodied.perturbations import Draws, Perturbation
from embodied.random import Stream
from embodied.runtime.worker.perturb import Disturbance, Use
from embodied.types import ArraySpec, ContinuousAction, DiscreteAction, EnvSpec

OBS = {"images": ArraySpec((2, 6, 8, 3), "uint8"), "state": ArraySpec((1,), "float32")}
LOW, HIGH = (-1.0, -2.0, 0.5, -1.0), (1.0, 2.0, 3.0, 1.0)
SPEC = EnvSpec(OBS, ("front", "wrist"), ContinuousAction(LOW, HIGH), ("do it",), (1,), 100, 20.0)
NEUTRAL = [0.0, 0.0, 0.5, 0.0]


def disturbance(
    spec: EnvSpec = SPEC, seed: int = 3, place: int = 5, stream: Stream = Stream.EVAL_PERTURBATION, **by: Any
):
    return Disturbance(spec, Draws(Perturbation(**by), seed, int(stream), place))


def chunks(count: int, length: int) -> np.ndarray:
    """Actions that are all different and within the range: float32 [count, length, 4]."""
    shares = np.random.default_rng(1).random((count, length, 4))
    return (np.array(LOW) + shares * (np.array(HIGH) - LOW)).astype(np.float32)


# -- actions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("length", [1, 4])
def test_actions_are_executed_n_control_steps_later_also_within_chunks(delay, length):
    given = chunks(6, length)
    one = disturbance(action_delay=delay)
    executed = np.concatenate([one.execute(chunk) for chunk in given])
    decided = np.concatenate(given)
    expected = np.concatenate([np.tile(np.float32(NEUTRAL), (delay, 1)), decided])[: len(decided)]
    assert np.array_equal(executed, expected)
    assert executed.dtype == np.float32


def test_the_gripper_comes_later_still():
    given = chunks(3, 4)
    one = disturbance(action_delay=1, gripper_delay=2)
    executed, decided = np.concatenate([one.execute(chunk) for chunk in given]), np.concatenate(given)
    assert np.array_equal(executed[1:, :3], decided[:-1, :3])
    assert np.array_equal(executed[3:, 3], decided[:-3, 3])
    assert executed[:3, 3].tolist() == [0, 0, 0]


def test_another_number_can_be_the_gripper():
    given = chunks(1, 4)[0]
    executed = disturbance(gripper_delay=4, gripper_dim=1).execute(given)
    assert executed[:, 1].tolist() == [0] * 4
    assert np.array_equal(executed[:, [0, 2, 3]], given[:, [0, 2, 3]])


def test_what_the_policy_has_decided_is_not_changed():
    given = chunks(1, 4)[0]
    before = given.copy()
    disturbance(action_noise=0.5, gripper_delay=1).execute(given)
    assert np.array_equal(given, before)


def test_noise_is_a_share_of_half_the_range_and_not_on_the_gripper():
    given = np.tile(np.float32([0, 0, 1.75, 1]), (4000, 1))
    executed = disturbance(action_noise=0.1).execute(given)
    assert (executed - given)[:, :3].std(axis=0) == pytest.approx([0.1, 0.2, 0.125], rel=0.05)
    assert np.array_equal(executed[:, 3], given[:, 3])
    far = disturbance(action_noise=5.0).execute(given)
    assert (far >= np.float32(LOW)).all()
    assert (far <= np.float32(HIGH)).all()


def test_a_hand_without_a_gripper_has_noise_on_all_numbers():
    executed = disturbance(action_noise=0.1, gripper_dim=None).execute(np.zeros((4, 4), np.float32))
    assert (executed[:, [0, 1, 3]] != 0).all()


def test_one_of_n_actions_can_be_delayed():
    spec = EnvSpec(OBS, ("front", "wrist"), DiscreteAction(9), ("do it",), (1,), 100, 20.0)
    one = disturbance(spec, action_delay=2)
    assert one.execute(np.int32([5, 6, 7])).tolist() == [0, 0, 5]
    assert one.execute(np.int32([1, 2, 3])).tolist() == [6, 7, 1]


# -- observations ----------------------------------------------------------------------------------------------------


class Clock:
    """An env whose pictures and state show the control step."""

    def __init__(self) -> None:
        self.step, self.renders = 0, 0

    def observe(self, out: Any) -> None:
        self.renders += 1
        out["images"][...] = self.step % 256
        out["state"][...] = self.step


def empty() -> dict[str, np.ndarray]:
    return {name: np.zeros(field.shape, field.dtype) for name, field in OBS.items()}


def play(
    one: Disturbance, length: int, count: int, last: int | None = None
) -> tuple[list[dict[str, np.ndarray]], Clock]:
    """What is shown at first and after each of ``count`` chunks. The episode ends with control step ``last``."""
    env, seen = Clock(), []

    def look() -> None:
        out = empty()
        if (target := one.target(out)) is not None:
            env.observe(target)
        one.show(out)
        seen.append(out)

    look()
    for chunk in chunks(count, length):
        one.execute(chunk)
        for _ in range(length):
            env.step += 1
            goes_on = env.step != last
            if (late := one.stepped(goes_on)) is not None:
                env.observe(late)
            if not goes_on:
                break
        look()
    return seen, env


@pytest.mark.parametrize("latency", [0, 1, 2, 3, 4, 5, 7, 8, 30])
@pytest.mark.parametrize("length", [1, 3, 4])
def test_an_observation_is_n_control_steps_old_and_costs_one_render(length, latency):
    seen, env = play(disturbance(latency=latency), length, 9)
    expected = [max(0, length * number - latency) for number in range(10)]
    assert [int(out["state"][0]) for out in seen] == expected
    assert [set(out["images"].ravel().tolist()) for out in seen] == [{step} for step in expected]
    assert env.renders <= 10


def test_the_last_observation_is_the_newest_that_is_old_enough():
    seen, _ = play(disturbance(latency=2), 4, 3, last=11)  # rendered at 0, 2, 6; 10 would be too new for 11
    assert [int(out["state"][0]) for out in seen] == [0, 2, 6, 6]


def test_dropped_frames_are_the_last_picture_of_each_camera_and_leave_the_state():
    seen, _ = play(disturbance(dropped_frames=0.5), 1, 400)
    shown = np.array([[out["images"][camera, 0, 0, 0] for camera in range(2)] for out in seen[:256]])
    assert shown[0].tolist() == [0, 0]
    steps = np.arange(256)[:, None]
    fresh = shown == steps
    assert (fresh | (shown == np.roll(shown, 1, axis=0)))[1:].all()
    assert fresh[1:].mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.1)
    assert (fresh[:, 0] != fresh[:, 1]).any(), "each camera has its own chance"
    assert [int(out["state"][0]) for out in seen] == [*range(401)]


def test_a_frame_that_comes_again_has_the_noise_that_it_had():
    seen, _ = play(disturbance(dropped_frames=0.9, noise=0.2), 1, 30)
    again = [np.array_equal(a["images"][0], b["images"][0]) for a, b in pairwise(seen)]
    assert 15 < sum(again) < 30


def test_light_goes_up_or_down_with_the_start_and_is_the_same_all_along():
    values = set()
    for place in range(12):
        one = disturbance(brightness=0.5, place=place)
        found = set()
        for _ in range(3):
            out = empty()
            out["images"][...] = 100
            one.show(out)
            found |= set(out["images"].ravel().tolist())
        assert len(found) == 1
        values |= found
    assert values == {50, 150}


# -- cameras ---------------------------------------------------------------------------------------------------------


def test_each_camera_goes_its_own_way_and_as_far_as_it_was_told():
    moves = {name: (shift, turn) for name, shift, turn in disturbance(camera_move=0.03, camera_turn=5.0).moves()}
    assert list(moves) == ["front", "wrist"]
    for shift, turn in moves.values():
        assert np.linalg.norm(shift) == pytest.approx(0.03)
        assert np.linalg.norm(turn) == pytest.approx(math.radians(5))
    assert not np.allclose(moves["front"][0], moves["wrist"][0])


def test_a_stronger_move_goes_further_in_the_same_direction():
    (_, near, _), _ = disturbance(camera_move=0.01).moves()
    (_, far, _), _ = disturbance(camera_move=0.06, blur=0.1).moves()
    assert far == pytest.approx(6 * near)
    (_, other, _), _ = disturbance(camera_move=0.01, place=6).moves()
    assert not np.allclose(other, near)


def test_cameras_stay_without_a_move():
    assert list(disturbance(blur=0.1).moves()) == []


# -- what is drawn ---------------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "brightness": 0.3, "contrast": 0.3, "blur": 0.2, "noise": 0.1, "latency": 3, "dropped_frames": 0.3,
    "action_delay": 1, "action_noise": 0.2, "gripper_delay": 2,
}  # fmt: skip


def trace(**key: Any) -> bytes:
    one = disturbance(**EVERYTHING, **key)
    executed = b"".join(one.execute(chunk).tobytes() for chunk in chunks(3, 4))
    seen, _ = play(disturbance(**EVERYTHING, **key), 4, 3)
    return executed + b"".join(out[name].tobytes() for out in seen for name in OBS)


def test_numbers_are_a_function_of_seed_stream_and_place():
    assert trace() == trace()
    others = [trace(seed=4), trace(place=6), trace(stream=Stream.TRAIN_PERTURBATION)]
    assert len({trace(), *others}) == 4


def test_nothing_is_changed_by_a_perturbation_of_strength_0():
    one = disturbance()
    given = chunks(2, 4)
    assert all(np.array_equal(one.execute(chunk), chunk) for chunk in given)
    assert list(one.moves()) == []
    out = empty()
    assert one.target(out) is out
    out["images"][...] = np.random.default_rng(0).integers(0, 256, OBS["images"].shape)
    before = out["images"].copy()
    one.show(out)
    assert np.array_equal(out["images"], before)


def test_no_two_uses_share_numbers():
    one = disturbance()
    assert len({one._numbers(use, at).bytes(64) for use in Use for at in range(3)}) == 3 * len(Use)
