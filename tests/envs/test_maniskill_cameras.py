"""A camera of ManiSkill is moved for an episode: zero changes no bit, objects are seen elsewhere, a reset undoes it."""

import os

import numpy as np
import pytest
from embodied.envs.maniskill import ManiSkillEnv
from embodied.envs.maniskill.rendering import check_vulkan

from embodied.errors import RendererUnavailableError
from embodied.types import Start

pytestmark = pytest.mark.sim
NOWHERE = np.zeros(3)
CAMERA = "base_camera"


@pytest.fixture(scope="module")
def env():
    try:
        check_vulkan()
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    before = dict(os.environ)
    made = ManiSkillEnv(
        {"id": "PickCube-v1", "control_mode": "pd_ee_delta_pose", "camera_heights": 64, "camera_widths": 64}
    )
    made.prepare()
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(before)


def picture(env, look, *moves):
    env.reset(Start(0, 0, 3))
    for translation, rotation in moves:
        env.move_camera(CAMERA, np.array(translation, float), np.array(rotation, float))
    return look(env)["images"][0].astype(int)


def cube(env) -> np.ndarray:
    """(right, up, back) of the cube in the camera's frame, m."""
    to_camera = env._sim.env.scene.sensors[CAMERA].camera._render_cameras[0].get_extrinsic_matrix()
    point = env._sim.env.unwrapped.cube.pose.p[0].numpy()
    return (to_camera[:, :3] @ point + to_camera[:, 3]) * [1, -1, -1]  # that matrix has y downwards and looks along z


def test_zero_changes_no_bit_and_a_reset_undoes_a_move(env, look):
    still = picture(env, look)
    assert np.array_equal(picture(env, look, (NOWHERE, NOWHERE)), still)
    moved = picture(env, look, ((0.05, 0, 0), NOWHERE), (NOWHERE, (0, 0, 0.1)))
    assert (moved != still).any(axis=-1).mean() > 0.2
    assert np.array_equal(picture(env, look), still)


@pytest.mark.parametrize("shift", [(0.05, 0, 0), (0, 0.04, 0), (0, 0, -0.1)], ids=["right", "up", "forwards"])
def test_objects_move_the_other_way_in_the_camera_s_frame(env, look, shift):
    picture(env, look)
    before = cube(env)
    picture(env, look, (shift, NOWHERE))
    assert cube(env) == pytest.approx(before - shift, abs=1e-5)


def test_a_turn_is_about_the_camera_s_own_axes(env, look):
    picture(env, look)
    right, up, back = cube(env)
    picture(env, look, (NOWHERE, (0, 0.1, 0)))
    c, s = np.cos(0.1), np.sin(0.1)
    assert cube(env) == pytest.approx([c * right - s * back, up, s * right + c * back], abs=1e-5)


def test_a_saved_state_has_its_camera(env, look):
    moved = picture(env, look, ((0.02, 0.01, 0), (0.05, 0, 0)))
    env.step(np.zeros(7, np.float32))
    state, seen = env.get_state(), look(env)["images"].copy()
    assert not np.array_equal(picture(env, look), moved)
    env.set_state(state)
    assert np.array_equal(look(env)["images"], seen)
