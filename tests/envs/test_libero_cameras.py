"""A camera of LIBERO is moved for an episode: objects are seen where geometry says, and a reset puts it back."""

import numpy as np
import pytest

from embodied.types import Start

pytestmark = pytest.mark.sim
NOWHERE = np.zeros(3)
START = Start(0, 0, 0)


@pytest.fixture
def pictures(sim, look):
    """The pictures at the start, after some moves of a camera: [C, H, W, 3]."""

    def after(*moves, camera="agentview"):
        sim.reset(START)
        for translation, rotation in moves:
            sim.move_camera(camera, np.array(translation, float), np.array(rotation, float))
        return look(sim)["images"].astype(int)

    return after


def where(sim, name: str, camera: str) -> np.ndarray:
    """(right, up, back) of an object in a camera's frame, m."""
    data, number = sim._current._shown(), sim._current._camera_ids[camera]
    point = data.xpos[sim._current._domain.obj_body_id[name]]
    return data.cam_xmat[number].reshape(3, 3).T @ (point - data.cam_xpos[number])


def test_moving_by_zero_changes_no_bit_and_a_reset_undoes_a_move(sim, pictures):
    still = pictures()
    assert np.array_equal(pictures((NOWHERE, NOWHERE)), still)
    assert np.array_equal(pictures((NOWHERE, NOWHERE), camera="robot0_eye_in_hand"), still)
    moved = pictures(((0.03, 0, 0), (0, 0, 0.05)))
    assert (moved[0] != still[0]).any(axis=-1).mean() > 0.2
    assert np.array_equal(moved[1], still[1]), "the other camera stays"
    assert np.array_equal(pictures(), still)


@pytest.mark.parametrize("camera", ["agentview", "robot0_eye_in_hand"])
@pytest.mark.parametrize("shift", [(0.05, 0, 0), (0, 0.04, 0), (0, 0, -0.03)], ids=["right", "up", "forwards"])
def test_objects_move_the_other_way_in_the_camera_s_frame(sim, pictures, camera, shift):
    pictures(camera=camera)
    before = where(sim, "butter_1", camera)
    pictures((shift, NOWHERE), camera=camera)
    assert where(sim, "butter_1", camera) == pytest.approx(before - shift, abs=1e-6)


def test_a_turn_is_about_the_camera_s_own_axes(sim, pictures):
    pictures()
    right, up, back = where(sim, "butter_1", "agentview")
    pictures((NOWHERE, (0, 0.1, 0)))  # to its left
    c, s = np.cos(0.1), np.sin(0.1)
    assert where(sim, "butter_1", "agentview") == pytest.approx(
        [c * right - s * back, up, s * right + c * back], abs=1e-6
    )
    pictures((NOWHERE, (0, 0, np.pi)))  # upside down
    assert where(sim, "butter_1", "agentview") == pytest.approx([-right, -up, back], abs=1e-6)


def test_a_picture_from_a_turned_camera_is_the_turned_picture(pictures):
    """LIBERO's cameras look through a square hole here cut to 96 x 128; half a turn maps each pixel onto another."""
    still, turned = pictures()[0], pictures((NOWHERE, (0, 0, np.pi)))[0]
    assert np.abs(turned[::-1, ::-1] - still).mean() < 2  # rounding at edges of objects
    assert np.abs(turned - still).mean() > 10


def test_moves_add_up_and_what_a_move_leads_to_is_exactly_drawn(sim, pictures):
    """Geometry that came into the picture by the move is in it: drawing everything gives the same."""
    near = pictures(((0.0, 0, 0.1), NOWHERE), ((0.0, 0, 0.1), NOWHERE))
    once = pictures(((0.0, 0, 0.2), NOWHERE))
    assert np.abs(near - once).max() <= 1
    sim._current._offscreen._may_cull = False
    try:
        assert np.array_equal(pictures(((0.0, 0, 0.2), NOWHERE)), once)
    finally:
        sim._current._offscreen._may_cull = True


def test_a_saved_state_has_its_camera(sim, look, pictures):
    moved = pictures(((0.02, 0.01, 0), (0.05, 0, 0)))
    state = sim.get_state()
    still = pictures()
    assert not np.array_equal(moved, still)
    sim.set_state(state)
    assert np.array_equal(look(sim)["images"], moved)
    sim.reset(START)
    assert np.array_equal(look(sim)["images"], still)


def test_a_camera_on_the_hand_goes_on_moving_with_it(sim, look, pictures):
    pictures(((0.02, 0, 0), NOWHERE), camera="robot0_eye_in_hand")
    before = where(sim, "butter_1", "robot0_eye_in_hand")
    for _ in range(8):
        sim.step(np.array([0, 0, 1, 0, 0, 0, -1], np.float32))
    assert np.linalg.norm(where(sim, "butter_1", "robot0_eye_in_hand") - before) > 0.03
