"""Textures and meshes are uploaded once for all models of a GL context; pictures stay those of MuJoCo alone."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from embodied.envs.libero.memory import _joined, release_drawn
from embodied.envs.libero.rendering import BACKENDS, draw_frame

from embodied.errors import RendererUnavailableError

pytestmark = pytest.mark.sim
NAMES = ("first", "equal", "other floor", "other mesh", "other order", "mesh twice")


@pytest.fixture(scope="module", params=BACKENDS)
def drawn(request, tmp_path_factory):
    """What ``uploaded_scenes.py`` has drawn, in a process of its own: GL can be set up once in a process."""
    if find_spec("mujoco") is None:  # not imported here: other tests of this process choose its backend
        pytest.skip("needs mujoco")
    try:
        draw_frame(request.param)
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("drawn") / "pictures.npz"
    environment = {**os.environ, "MUJOCO_GL": request.param, "PYOPENGL_PLATFORM": request.param}
    script = Path(__file__).parent / "uploaded_scenes.py"
    subprocess.run([sys.executable, script, path], env=environment, check=True, timeout=120)
    return np.load(path)


def test_models_in_one_context_look_as_each_does_alone(drawn):
    for name in NAMES:
        assert drawn[f"{name} alone"].std() > 20
        for turn in ("once", "again"):
            assert np.array_equal(drawn[f"{name} {turn}"], drawn[f"{name} alone"]), (name, turn)
    looks = {drawn[f"{name} alone"].tobytes() for name in NAMES if name != "equal"}
    assert len(looks) == 4, "all but the one whose meshes come in another order"


def test_what_models_have_in_common_is_uploaded_once(drawn):
    assert drawn["first counts"].tolist() == [1] * 5, "three textures, two meshes"
    assert drawn["equal counts"].tolist() == [2] * 5
    assert drawn["other floor counts"].tolist() == [1, 2, 3, 3, 3, 3]
    assert drawn["other mesh counts"].tolist() == [1, 1, 3, 3, 4, 4, 4]
    assert drawn["other order counts"].tolist() == [1, 1, 1, 4, 4, 5, 5, 5]


def test_uploads_stay_while_somebody_uses_them(drawn):
    assert drawn["counts without two"].tolist() == [1, 1, 3, 4, 4, 4, 4], "the other mesh is gone, and nothing else"
    for name in ("equal", "other floor", "other order", "mesh twice", "late"):
        assert np.array_equal(drawn[f"{name} later"], drawn[f"{name} alone"]), name
    assert drawn["sizes"] == 2, "each size of a picture has a context"
    assert drawn["left"].size == drawn["canvases"] == 0


# -- pages of meshes -------------------------------------------------------------------------------------------------

MESHES = """
<mujoco>
  <asset>
    <mesh name="drawn" vertex="{vertices}"/> <mesh name="solid" vertex="{vertices}"/>
    <mesh name="unused" vertex="{vertices}"/> <mesh name="paired" vertex="{vertices}"/>
  </asset>
  <worldbody>
    <site name="eye"/>
    <geom type="mesh" mesh="drawn" contype="0" conaffinity="0"/> <geom type="mesh" mesh="solid" conaffinity="0"/>
    <body><freejoint/><geom name="a" type="mesh" mesh="paired" contype="0" conaffinity="0"/></body>
    <body><freejoint/><geom name="b" size="0.1" contype="0" conaffinity="0"/></body>
  </worldbody>
  <contact><pair geom1="a" geom2="b"/></contact>
  {more}
</mujoco>
"""
OF_VERTICES, OF_FACES = ("mesh_vert", "mesh_polymapadr"), ("mesh_face", "mesh_facenormal")


@pytest.fixture
def released(sim):
    """The arrays of a model's four large meshes before and after, by name: lists of one array a mesh."""
    import mujoco

    def arrays(model) -> dict[str, list[np.ndarray]]:
        found = {name: slices(model, name, "mesh_vertadr", "mesh_vertnum") for name in OF_VERTICES}
        found |= {name: slices(model, name, "mesh_faceadr", "mesh_facenum") for name in OF_FACES}
        found |= {"bvh_aabb": slices(model, "bvh_aabb", "mesh_bvhadr", "mesh_bvhnum")}
        return found | {"mesh_polynormal": slices(model, "mesh_polynormal", "mesh_polyadr", "mesh_polynum")}

    def slices(model, name: str, first: str, count: str) -> list[np.ndarray]:
        starts, sizes = getattr(model, first), getattr(model, count)
        return [getattr(model, name)[a : a + n].copy() for a, n in zip(starts, sizes, strict=True)]

    def run(more: str = "") -> tuple[dict, dict]:
        points = np.random.default_rng(0).standard_normal((4000, 3))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        vertices = " ".join(f"{value:.5f}" for value in points.reshape(-1))
        model = mujoco.MjModel.from_xml_string(MESHES.format(vertices=vertices, more=more))
        before = arrays(model)
        release_drawn(model)
        return before, arrays(model)

    return run


def test_meshes_that_are_only_drawn_are_given_back_and_those_that_collide_stay(released):
    before, after = released()
    for name in before:
        drawn, solid, unused, paired = after[name]
        assert np.array_equal(solid, before[name][1]), name
        assert np.array_equal(paired, before[name][3]), name
        for mesh, values in enumerate((drawn, unused)):
            assert before[name][2 * mesh].any(), name
            assert (values == 0).mean() > (before[name][2 * mesh] == 0).mean() + 0.5, name


def test_a_sensor_that_sees_surfaces_keeps_every_mesh(released):
    before, after = released('<sensor><rangefinder site="eye"/></sensor>')
    for name in before:
        assert all(map(np.array_equal, before[name], after[name])), name


def test_ranges_that_touch_are_one():
    assert _joined([(4, 6), (0, 2), (2, 4), (7, 9)]) == [(0, 6), (7, 9)]
