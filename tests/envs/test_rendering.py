import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from embodied.envs.libero import rendering
from embodied.envs.libero.rendering import check_renderer

from embodied.errors import RendererUnavailableError, UnknownNameError


@pytest.mark.sim
def test_finds_a_renderer_and_leaves_no_trace(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    before, modules = dict(os.environ), set(sys.modules)
    choice = check_renderer()
    assert choice.name in ("egl", "osmesa")
    assert "first of egl, osmesa that made a context" in choice.reason
    assert dict(os.environ) == before
    assert not {m for m in set(sys.modules) - modules if m.split(".")[0] in ("mujoco", "OpenGL")}


def _only(monkeypatch, works: dict[str, tuple[bool, str]]) -> list[str]:
    tried: list[str] = []

    def attempt(name: str) -> tuple[bool, str]:
        tried.append(name)
        return works[name]

    monkeypatch.setattr(rendering, "_try_backend", attempt)
    return tried


def test_takes_the_next_when_the_first_fails(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    tried = _only(monkeypatch, {"egl": (False, "no device"), "osmesa": (True, "llvmpipe")})
    assert check_renderer() == rendering.RendererChoice(
        "osmesa", "OSMESA (llvmpipe); first of egl, osmesa that made a context", "llvmpipe"
    )
    assert tried == ["egl", "osmesa"]


def test_says_what_each_attempt_said(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    _only(monkeypatch, {"egl": (False, "no device"), "osmesa": (False, "no library")})
    with pytest.raises(RendererUnavailableError, match="egl: no device; osmesa: no library") as caught:
        check_renderer()
    assert "apt-get install -y libegl1" in caught.value.remedy


def test_a_backend_that_cannot_load_reports_its_error(monkeypatch):
    monkeypatch.setenv("PYOPENGL_PLATFORM", "")
    monkeypatch.setattr(rendering, "_TRIAL", "raise ImportError('no libEGL here')")
    assert rendering._try_backend("egl") == (False, "ImportError: no libEGL here")


def test_honours_what_the_user_set(monkeypatch):
    tried = _only(monkeypatch, {"egl": (True, "a"), "osmesa": (True, "b")})
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert check_renderer().name == "osmesa"
    assert check_renderer("egl").reason == "EGL (a); asked for by renderer"
    assert tried == ["osmesa", "egl"]
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    with pytest.raises(RendererUnavailableError, match="MUJOCO_GL=glfw"):
        check_renderer()


def test_unknown_renderer_has_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean 'osmesa'"):
        check_renderer("mesa")


# -- what is not drawn -----------------------------------------------------------------------------------------------

PLACES = ("3 0 1", "0.9 0 0.2", "0 0.5 0.2", "0 0 4")  # of a ball, in a scene with a box behind the camera


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Pictures with and without culling, from a process of its own: GL can be set up once in a process."""
    if find_spec("mujoco") is None:  # not imported here: other tests of this process choose its backend
        pytest.skip("needs mujoco")
    path = tmp_path_factory.mktemp("drawn") / "pictures.npz"
    name = check_renderer().name
    environment = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
    script = Path(__file__).parent / "culled_scene.py"
    subprocess.run([sys.executable, script, path, *PLACES], env=environment, check=True, timeout=120)
    return np.load(path)


@pytest.mark.sim
@pytest.mark.parametrize("place", PLACES)
def test_geometry_outside_the_picture_is_not_drawn_and_the_picture_is_the_same(drawn, place):
    picture, hidden = drawn[f"{place} culled"], set(drawn[f"{place} hidden"])
    assert np.array_equal(picture, drawn[f"{place} whole"])
    green = (picture[..., 1] > 1.5 * picture[..., 0]) & (picture[..., 1] > 1.5 * picture[..., 2])
    assert ("ball" in hidden) != green.any()
    assert hidden - {"ball"} == {"behind"}


@pytest.mark.sim
@pytest.mark.parametrize("scene", ["mirror", "shadow"])
def test_everything_is_drawn_where_a_mirror_or_a_shadow_could_show_it(drawn, scene):
    assert drawn[f"{scene} hidden"].size == 0
