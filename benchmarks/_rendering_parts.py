"""Where the CPU time of LIBERO's pictures and of a whole chunk goes, as the adapter draws them.

A picture: ``culling`` (which geometry lies outside), ``update_scene`` (``mjv_updateScene``), ``render`` (``mjr_render``
until GL is done with it), ``read_back`` (``mjr_readPixels``). ``triangles`` are those that GL was given, counted by GL
itself; ``triangles_of_all`` with what lies outside.

A chunk of eight control steps and one observation of two cameras: ``physics`` (bare calls of ``mj_step`` for the same
steps from the same state), ``control`` (the rest of the steps: control, goals, progress, clock), the parts of both
pictures, ``copy`` (turning them and writing them into the slab's row), ``rest`` (where the sensors saw everything, the
robot's state).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
from _control_step_libero import bare_ms, cpu_ms, torques_of
from embodied.envs.libero import LiberoEnv

from embodied.types import Start

CHUNK = 8
PARTS = ("culling", "update_scene", "render", "read_back")
Costs = dict[str, list[float]]  # CPU-ms by part


class Clocked:
    """Stands for the ``mujoco`` that a renderer calls, with a clock around each part of its pictures."""

    def __init__(self, offscreen: Any) -> None:
        self._mujoco = offscreen._mujoco
        self.taken = dict.fromkeys(PARTS, 0.0)
        self.mjv_updateScene = self._clock("update_scene", self._mujoco.mjv_updateScene)
        self.mjr_render = self._clock("render", self._render)
        self.mjr_readPixels = self._clock("read_back", self._mujoco.mjr_readPixels)
        self.outside = self._clock("culling", offscreen._outside)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mujoco, name)

    def _clock(self, part: str, function: Any) -> Any:
        def clocked(*arguments: Any) -> Any:
            begun = time.process_time()
            result = function(*arguments)
            self.taken[part] += (time.process_time() - begun) * 1e3
            return result

        return clocked

    def _render(self, *arguments: Any) -> None:
        from OpenGL import GL

        self._mujoco.mjr_render(*arguments)
        GL.glFinish()


@contextmanager
def clocked(sim: Any) -> Iterator[dict[str, float]]:
    """Within it, the parts of this simulator's pictures are timed: CPU-ms by part."""
    offscreen = sim._offscreen
    offscreen._mujoco = clock = Clocked(offscreen)
    offscreen._outside = clock.outside
    yield clock.taken
    offscreen._mujoco = clock._mujoco
    del offscreen._outside


def triangles(sim: Any, camera: str, cull: bool) -> int:
    from OpenGL import GL

    offscreen = sim._offscreen
    may, offscreen._may_cull = offscreen._may_cull, offscreen._may_cull and cull
    offscreen._canvas.gl.make_current()
    query, counted = ctypes.c_uint(), ctypes.c_uint()
    GL.glGenQueries(1, query)
    GL.glBeginQuery(GL.GL_PRIMITIVES_GENERATED, query.value)
    offscreen.render(sim._shown(), sim._camera_ids[camera])
    GL.glEndQuery(GL.GL_PRIMITIVES_GENERATED)
    offscreen._may_cull = may
    GL.glGetQueryObjectuiv(query.value, GL.GL_QUERY_RESULT, counted)
    return counted.value


def picture_parts(sim: Any, camera: str) -> dict[str, float]:
    """One picture of the present state; leaves it to be drawn again."""
    sim._pictures = {}
    with clocked(sim) as taken:
        whole = cpu_ms(lambda: sim.render(camera))
    sim._pictures = {}
    return {**taken, "picture": whole}


def chunk_parts(env: LiberoEnv, actions: np.ndarray, row: dict[str, np.ndarray]) -> dict[str, float]:
    """One chunk from the present state on."""

    def steps() -> None:
        for action in actions:
            env.step(action)

    sim, before = env._current, env.get_state()
    torques = torques_of(sim, steps)
    after = sim._physics()
    physics = bare_ms(sim, before["simulator"]["physics"], torques, after)
    env.set_state(before)
    stepped = cpu_ms(steps)
    with clocked(sim) as taken:
        observed = cpu_ms(lambda: env.observe(row))
    copy = cpu_ms(lambda: [copies(image) for image in row["images"]])
    rest = observed - sum(taken.values()) - copy
    whole = stepped + observed
    return {"physics": physics, "control": stepped - physics, **taken, "copy": copy, "rest": rest, "chunk": whole}


def copies(image: np.ndarray) -> np.ndarray:
    image[:] = image[::-1, ::-1].copy()
    return image


def measure(suite: str, size: int, states: int, renderer: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns medians over the states of an episode of the suite's first task: of each camera's picture, of a chunk."""
    params = {"camera_heights": size, "camera_widths": size}
    env = LiberoEnv(suite, task_ids=[0], init_params=params, renderer=renderer)
    env.prepare()
    env.reset(Start(0, 0, 0))
    row = {name: np.zeros(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
    env.observe(row)  # makes the GL context
    drawn = np.random.default_rng(0).uniform(-1, 1, (states, CHUNK, 7)).astype(np.float32)
    pictures: dict[str, list[dict[str, float]]] = {camera: [] for camera in env.spec.cameras}
    chunks = []
    for actions in drawn:
        for camera, rows in pictures.items():
            counted = {"triangles": triangles(env._current, camera, True)}
            counted["triangles_of_all"] = triangles(env._current, camera, False)
            rows.append({**picture_parts(env._current, camera), **counted})
        chunks.append(chunk_parts(env, actions, row))
    env.close()
    of_cameras = {f"{suite}, {camera}, {size}": medians(rows) for camera, rows in pictures.items()}
    return of_cameras, {f"{suite}, {size}": medians(chunks)}


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(row[name] for row in rows) for name in rows[0]}


def show(cells: dict[str, dict[str, float]]) -> None:
    for cell, found in cells.items():
        said = (
            f"{name} {value:,.0f}" if "triangles" in name else f"{name} {value:.2f}" for name, value in found.items()
        )
        print(f"{cell}, CPU-ms: {', '.join(said)}", flush=True)
