"""Finds the OpenGL backend that works on this machine without a display, and renders MuJoCo's pictures with it.

Nothing is imported or created in the process that asks :func:`check_renderer`: each backend is tried in a process of
its own, because a GL library that fails half-way cannot be unloaded, and some drivers crash instead of raising.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied.errors import RendererUnavailableError, unknown_name
from embodied.lib.memory import trim

from ..shared.frustum import Frustum, corners
from ..shared.machine import try_in_process
from ..shared.memory import release
from .memory import release_drawn
from .meshes import coarser
from .uploads import leave_canvas, take_canvas

BACKENDS = ("egl", "osmesa")  # EGL first: with a GPU's driver it is the fast one; without a GPU both cost the same
REMEDY = (
    "apt-get install -y libegl1 libgl1 libgles2 libosmesa6  (Mesa, works without a GPU; "
    "on a GPU machine the driver's own EGL is used), then try again"
)
_TRIAL = """
import mujoco
context = mujoco.GLContext(64, 64)
context.make_current()
from OpenGL import GL
import sys
if sys.argv[1:] == ["frame"]:
    import numpy
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='.3'/></worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    scene, camera = mujoco.MjvScene(model, 10), mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, mujoco.mjtCatBit.mjCAT_ALL, scene)
    drawing = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, drawing)
    frame, area = numpy.zeros((64, 64, 3), numpy.uint8), mujoco.MjrRect(0, 0, 64, 64)
    mujoco.mjr_render(area, scene, drawing)
    mujoco.mjr_readPixels(frame, None, area, drawing)
    if frame.min() == frame.max():
        raise RuntimeError("it made a context and drew an empty picture")
print("GL_RENDERER=" + GL.glGetString(GL.GL_RENDERER).decode())
context.free()
"""


@dataclass(frozen=True)
class RendererChoice:
    """A backend that made a context, e.g. ``("egl", "EGL (llvmpipe …); first of egl, osmesa that made a context")``."""

    name: str  # value for MUJOCO_GL
    reason: str
    driver: str = ""  # name of the renderer, as GL gives it

    @property
    def draws_in_process(self) -> bool:
        """Whether Mesa draws with the process's own memory and thread, and with no device."""
        return self.driver.startswith(("llvmpipe", "softpipe"))


def check_renderer(wanted: str = "auto") -> RendererChoice:
    """Finds a backend that makes a GL context. Takes about 1 s and leaves no trace in this process.

    Args:
        wanted: "egl", "osmesa", or "auto": the environment's MUJOCO_GL if set, else the first that works.

    Raises:
        UnknownNameError: ``wanted`` is none of these.
        RendererUnavailableError: none works; the message holds what each said.
    """
    candidates, why = _candidates(wanted)
    said: list[str] = []
    for name in candidates:
        ok, text = _try_backend(name)
        if ok:
            return RendererChoice(name, f"{name.upper()} ({text}); {why}", text)
        said.append(f"{name}: {text}")
    raise RendererUnavailableError("no way to render without a display was found: " + "; ".join(said), REMEDY)


def _candidates(wanted: str) -> tuple[tuple[str, ...], str]:
    if wanted not in ("auto", *BACKENDS):
        raise unknown_name("renderer", wanted, ("auto", *BACKENDS), "env.train.renderer")
    if wanted != "auto":
        return (wanted,), "asked for by renderer"
    from_user = os.environ.get("MUJOCO_GL", "").lower().strip()
    if not from_user:
        return BACKENDS, f"first of {', '.join(BACKENDS)} that made a context"
    if from_user not in BACKENDS:
        raise RendererUnavailableError(
            f"MUJOCO_GL={from_user} cannot render without a display",
            f"unset MUJOCO_GL, or set it to one of: {', '.join(BACKENDS)}",
        )
    return (from_user,), "asked for by MUJOCO_GL"


def draw_frame(name: str) -> str:
    """Draws a small picture with a backend, in a process of its own; returns the name of the GL driver.

    Raises:
        RendererUnavailableError: the backend cannot, with what it said.
    """
    ok, text = _try_backend(name, "frame")
    if not ok:
        raise RendererUnavailableError(f"{name.upper()} cannot draw: {text}", REMEDY)
    return text


def _try_backend(name: str, *more: str) -> tuple[bool, str]:
    """(worked, name of the GL driver or last line of the error). With "frame" it draws one, too."""
    return try_in_process(_TRIAL, more, {"MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}, "GL_RENDERER=")


@dataclass(frozen=True)
class Pictures:
    """Settings of pictures: keys of ``init_params``."""

    cameras: tuple[str, ...]
    height: int
    width: int
    mesh_cell: float


_NOT_DRAWN = 5  # a group of geometry that MuJoCo leaves out of pictures


class Offscreen:
    """Renders pictures of one MuJoCo model, in the GL context of their size. Only for the worker, after
    MUJOCO_GL is set.

    The scene is set up as robosuite 1.4 sets up its cameras (visual geometry only), so pictures are equal to its.
    The model's textures, and meshes that only pictures need, are handed over to GL and given up in the model: one
    ``Offscreen`` a model, for its whole life.

    Args:
        mesh_cell: as :func:`embodied.envs.libero.meshes.coarser` takes it, m.
    """

    def __init__(self, model: Any, width: int, height: int, mesh_cell: float = 0.0) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, model
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        if not model.light_castshadow.any():
            model.vis.quality.shadowsize = 0  # else GL gets a map of 64 MB in which nothing is ever drawn
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), np.uint8)
        self._canvas = take_canvas(width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._camera, self._option = mujoco.MjvCamera(), mujoco.MjvOption()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._option.geomgroup[0], self._option.geomgroup[1] = 0, 1  # collision shapes off, visual meshes on
        self._boxes = np.stack([corners(box[:3] - box[3:], box[:3] + box[3:]) for box in model.geom_aabb])
        self._bounded, self._may_cull = model.geom_rbound > 0, _may_cull(mujoco, model)
        with coarser(model, mesh_cell):
            self._context, self._used = self._canvas.context(model)
        release(model.tex_data)
        release_drawn(model)
        trim()

    def render(self, data: Any, camera_id: int) -> np.ndarray:
        """Renders ``data`` (kinematics and cameras computed): uint8 [H, W, 3], GL's rows from below turned by 180°.

        Turning (not flipping) is what the demonstrations and checkpoints of LIBERO were made with: the picture is
        upright and mirrored left to right.
        """
        mujoco = self._mujoco
        self._canvas.gl.make_current()  # pictures of another size have another
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)  # others draw in this one too
        self._camera.fixedcamid = camera_id
        everything, groups = mujoco.mjtCatBit.mjCAT_ALL, self._model.geom_group
        outside = self._outside(data, camera_id)
        before, groups[outside] = groups[outside], _NOT_DRAWN
        mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, everything, self._scene)
        groups[outside] = before
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._rect, self._context)
        return self._pixels[::-1, ::-1].copy()

    def _outside(self, data: Any, camera_id: int) -> np.ndarray:
        """Marks geometry that this camera cannot see, bool [ngeom]. The picture is the same without it."""
        if not self._may_cull:
            return np.zeros(self._model.ngeom, bool)
        place = np.zeros((self._model.ngeom, 4, 4))
        place[:, :3, :3], place[:, :3, 3] = data.geom_xmat.reshape(-1, 3, 3), data.geom_xpos
        place[:, 3, 3] = 1
        boxes = np.einsum("nij,nkj->nki", place, self._boxes)
        to_camera = np.eye(4)
        to_camera[:3, :3] = (data.cam_xmat[camera_id].reshape(3, 3) * [1, -1, -1]).T  # MuJoCo looks along −z, y upwards
        to_camera[:3, 3] = -to_camera[:3, :3] @ data.cam_xpos[camera_id]
        width, height = self._rect.width, self._rect.height
        focal = height / 2 / np.tan(np.deg2rad(self._model.cam_fovy[camera_id]) / 2)
        frustum = Frustum.of_pinhole(to_camera, (focal, focal), (width / 2, height / 2), (width, height))
        return self._bounded & frustum.misses(boxes)

    def close(self) -> None:
        self._canvas.free(self._context, self._used)
        leave_canvas(self._canvas)


def _may_cull(mujoco: Any, model: Any) -> bool:
    """Returns whether geometry outside a picture leaves no shadow or reflection in it."""
    flat = np.isin(model.geom_type, [mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_BOX])
    shown = flat & np.isin(model.geom_group, [1, 2]) & (model.geom_matid >= 0)
    mirrors = model.mat_reflectance[model.geom_matid[shown]] > 0
    known = not model.cam_sensorsize.any()  # cameras given by their field of view
    return known and not mirrors.any() and not model.light_castshadow.any()
