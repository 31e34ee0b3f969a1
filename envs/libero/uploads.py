"""Uploads each texture and mesh once to GL, although many models have it. Only for the worker, after MUJOCO_GL is set.

A model's drawing context is made with textures of one pixel and meshes without triangles. It then gets the names of
textures that the canvas has by content, and display lists that call those of the canvas. What nobody uses is deleted.
"""

from __future__ import annotations

import atexit
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Key = bytes
_SIZES = ("tex_width", "tex_height")  # sizes of a texture
_SHAPES = ("mesh_facenum", "mesh_graphadr")  # −1: no hull
_CORNERS = ("mesh_face", "mesh_facenormal", "mesh_facetexcoord")


@dataclass
class Upload:
    """Data in a GL context that several models share: a texture, or the two display lists of a mesh and its hull."""

    name: int  # GL's; of the lists the first
    delete: Callable[[], None]
    users: int = 0


class Canvas:
    """A GL context of this process for pictures of one size, with the textures and meshes that were uploaded to it."""

    def __init__(self, width: int, height: int) -> None:
        import mujoco

        self.size = (width, height)
        self.gl = mujoco.GLContext(width, height)
        atexit.register(self.gl.free)  # frees it if nobody closed the env: later the interpreter has taken GL apart
        self.users = 0
        self._uploads: dict[Key, Upload] = {}

    def context(self, model: Any) -> tuple[Any, list[Key]]:
        """Makes MuJoCo's drawing context of a model, which reuses uploads of other models.

        Returns:
            It, and what it uses of the uploads; both go to :meth:`free`.
        """
        import mujoco

        with _small(model):
            context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        used = [self._use_texture(model, context, number) for number in range(model.ntex)]
        used += [self._use_mesh(model, context, number) for number in range(model.nmesh)]
        return context, used

    def _use_texture(self, model: Any, context: Any, number: int) -> Key:
        import mujoco
        from OpenGL import GL

        def upload() -> Upload:
            context.texture[number] = name = int(GL.glGenTextures(1))
            mujoco.mjr_uploadTexture(model, context, number)
            return Upload(name, lambda: GL.glDeleteTextures([name]))

        GL.glDeleteTextures([int(context.texture[number])])
        key = texture_key(model, number)
        context.texture[number] = self._use(key, upload)
        return key

    def _use_mesh(self, model: Any, context: Any, number: int) -> Key:
        import mujoco
        from OpenGL import GL

        def upload() -> Upload:
            first, base = int(GL.glGenLists(2)), context.baseMesh
            context.baseMesh = (first - 2 * number) % 2**32  # MuJoCo compiles its lists behind this
            mujoco.mjr_uploadMesh(model, context, number)
            context.baseMesh = base
            return Upload(first, lambda: GL.glDeleteLists(first, 2))

        key = mesh_key(model, number)
        first = self._use(key, upload)
        for part in range(2):
            GL.glNewList(context.baseMesh + 2 * number + part, GL.GL_COMPILE)
            GL.glCallList(first + part)
            GL.glEndList()
        return key

    def _use(self, key: Key, upload: Callable[[], Upload]) -> int:
        if key not in self._uploads:
            self._uploads[key] = upload()
        self._uploads[key].users += 1
        return self._uploads[key].name

    def free(self, context: Any, used: list[Key]) -> None:
        """Frees a drawing context, and uploads that nothing else uses."""
        self.gl.make_current()
        context.texture[:] = 0  # else MuJoCo deletes those of the canvas
        context.free()
        for key in used:
            self._uploads[key].users -= 1
            if not self._uploads[key].users:
                self._uploads.pop(key).delete()


_CANVASES: dict[tuple[int, int], Canvas] = {}


def take_canvas(width: int, height: int) -> Canvas:
    """Makes the process's GL context for a picture size current; :func:`leave_canvas` gives it back."""
    if (width, height) not in _CANVASES:
        _CANVASES[width, height] = Canvas(width, height)
    canvas = _CANVASES[width, height]
    canvas.users += 1
    canvas.gl.make_current()
    return canvas


def leave_canvas(canvas: Canvas) -> None:
    """Gives back a GL context that :func:`take_canvas` made current."""
    canvas.users -= 1
    if not canvas.users:
        del _CANVASES[canvas.size]
        atexit.unregister(canvas.gl.free)
        canvas.gl.free()


@contextmanager
def _small(model: Any) -> Iterator[None]:
    """Within it, a drawing context of the model costs no memory for textures and meshes."""
    kept = {name: getattr(model, name).copy() for name in (*_SIZES, *_SHAPES)}
    try:
        for name, value in {**dict.fromkeys(_SIZES, 1), "mesh_facenum": 0, "mesh_graphadr": -1}.items():
            getattr(model, name)[:] = value
        yield
    finally:
        for name, values in kept.items():
            getattr(model, name)[:] = values


def texture_key(model: Any, number: int) -> Key:
    """Hashes the content of a texture, with all that its upload reads."""
    names = ("tex_type", *_SIZES, "tex_nchannel", "tex_colorspace")
    shape = [int(getattr(model, name)[number]) for name in names if hasattr(model, name)]
    width, height, channels = (int(getattr(model, name)[number]) for name in (*_SIZES, "tex_nchannel"))
    first = int(model.tex_adr[number])
    return _digest(("texture", shape), [model.tex_data[first : first + width * height * channels]])


def mesh_key(model: Any, number: int) -> Key:
    """Hashes the content of a mesh and its hull, with all that their upload reads."""
    parts = [_part(model, "mesh_vert", "mesh_vertadr", "mesh_vertnum", number)]
    parts.append(_part(model, "mesh_normal", "mesh_normaladr", "mesh_normalnum", number))
    if textured := int(model.mesh_texcoordadr[number]) >= 0:
        parts.append(_part(model, "mesh_texcoord", "mesh_texcoordadr", "mesh_texcoordnum", number))
    parts += [_part(model, name, "mesh_faceadr", "mesh_facenum", number) for name in _CORNERS]
    parts.append(_hull(model, number))
    return _digest(("mesh", textured, [len(part) for part in parts]), parts)


def _part(model: Any, name: str, first: str, count: str, number: int) -> np.ndarray:
    begin = int(getattr(model, first)[number])
    return getattr(model, name)[begin : begin + int(getattr(model, count)[number])]


def _hull(model: Any, number: int) -> np.ndarray:
    """The graph of a mesh's hull: two counts, then 1 + 1 numbers a vertex and 3 + 3 + 1 … an edge and face."""
    begin = int(model.mesh_graphadr[number])
    if begin < 0:
        return model.mesh_graph[:0]
    vertices, faces = model.mesh_graph[begin : begin + 2]
    return model.mesh_graph[begin : begin + 2 + 3 * int(vertices) + 6 * int(faces)]


def _digest(facts: object, parts: list[np.ndarray]) -> Key:
    hashed = hashlib.sha256(repr(facts).encode())
    for part in parts:
        hashed.update(np.ascontiguousarray(part).data)
    return hashed.digest()
