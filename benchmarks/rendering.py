"""What rendering wastes: CPU time of a picture as the simulators' own code draws it, and without what nobody sees.

    python benchmarks/rendering.py                      # LIBERO's suites and ManiSkill's cameras
    python benchmarks/rendering.py --libero libero_10 --maniskill
    python benchmarks/rendering.py --renderer egl --maniskill       # LIBERO through EGL, to a file of its own

One process, the same states for all variants, which take turns; medians over states of CPU time and of the ratio to
``everything``. ``culled`` is what the adapters do: no geometry outside the picture, and the same picture to the bit.
LIBERO's ``no_antialiasing`` (one sample a pixel instead of four) and ``coarse`` (``init_params.mesh_cell`` of 1 cm) are
other pictures: how many pixels differ, and by how much, stands beside them. ``copies`` is what it costs to turn the
picture and to write it into the slab. The parts of LIBERO's pictures and of a chunk are explained in
``_rendering_parts.py``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from _measure import machine, save
from _rendering_parts import CHUNK, copies, measure, show

COARSE = 0.01  # m
SUITES = ("libero_10", "libero_object", "libero_spatial", "libero_goal", "libero_90")
PICTURES = 3  # of one state and variant, for one value
QUICKSTART = Path(__file__).parents[1] / "config" / "env" / "quickstart_pullcube.yaml"
MANISKILL = {  # name → task, init_params of its cameras
    "PickCube-v1, the task's view, 128": ("PickCube-v1", {"camera_heights": 128, "camera_widths": 128}),
    "PullCube-v1, from near (quickstart), 64": (
        "PullCube-v1",
        yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))["init_params"],
    ),
}


class Table:
    """CPU-ms and pictures of the variants, state after state."""

    def __init__(self) -> None:
        self.cost: dict[str, list[float]] = {}
        self.differ: dict[str, list[tuple[float, float]]] = {}  # share of pixels, mean difference of these

    def measure(self, variants: Mapping[str, Callable[[], np.ndarray]]) -> None:
        pictures = {}
        for name, draw in variants.items():
            draw()
            begun = time.process_time()
            for _ in range(PICTURES):
                pictures[name] = draw()
            self.cost.setdefault(name, []).append((time.process_time() - begun) / PICTURES * 1e3)
        reference = pictures["everything"].astype(int)
        for name, picture in pictures.items():
            if name not in ("everything", "copies"):
                off = np.abs(picture - reference).max(axis=-1)
                self.differ.setdefault(name, []).append(((off > 0).mean(), off[off > 0].mean() if off.any() else 0.0))

    def summary(self) -> dict[str, Any]:
        whole = np.array(self.cost["everything"])
        return {
            name: {
                "cpu_ms": median(values),
                "ratio": median((np.array(values) / whole).tolist()),
                **({"pixels_that_differ": float(np.mean([share for share, _ in self.differ[name]])),
                    "their_difference": float(np.mean([size for _, size in self.differ[name]]))}
                   if name in self.differ else {}),
            }
            for name, values in self.cost.items()
        }  # fmt: skip


def libero(suite: str, size: int, states: int, renderer: str) -> dict[str, Any]:
    """Both cameras of the suite's first task."""
    from embodied.envs.libero import LiberoEnv
    from embodied.envs.libero.simulator import TaskSimulator

    params = {"camera_heights": size, "camera_widths": size}
    envs = [
        LiberoEnv(suite, task_ids=[0], init_params={**params, "mesh_cell": cell}, renderer=renderer)
        for cell in (0.0, 0.0, COARSE)
    ]
    sims = []
    for samples, env in zip((4, 0, 4), envs, strict=True):
        env.prepare()
        sim = TaskSimulator(str(env._tasks[0].bddl_file), env._pictures)  # envs would share that of equal pictures
        sim.begin(env._init_states[0][0], env._wait_steps)
        sim._model.vis.quality.offsamples = samples
        sim.render(env.spec.cameras[0])  # makes the GL context
        sims.append(sim)
    smooth, rough, coarse = sims
    slab = np.zeros((size, size, 3), np.uint8)
    tables = {camera: Table() for camera in envs[0].spec.cameras}
    drawn = np.random.default_rng(0).uniform(-1, 1, (states * CHUNK, 7)).astype(np.float32)
    for state in range(states):
        for camera, table in tables.items():
            variants = {
                "everything": partial(libero_picture, smooth, camera, False),
                "culled": partial(libero_picture, smooth, camera, True),
                "no_antialiasing": partial(libero_picture, rough, camera, True),
                "coarse": partial(libero_picture, coarse, camera, True),
                "copies": partial(copies, slab),
            }
            table.measure(variants)
        for action in drawn[state * CHUNK : (state + 1) * CHUNK]:
            for sim in sims:
                sim.step(np.asarray(action, np.float64))
    for sim in sims:
        sim.close()
    return {f"{suite}, {camera}, {size}": table.summary() for camera, table in tables.items()}


def libero_picture(sim: Any, camera: str, cull: bool) -> np.ndarray:
    offscreen = sim._offscreen
    may = offscreen._may_cull
    offscreen._may_cull = may and cull
    picture = offscreen.render(sim._shown(), sim._camera_ids[camera])
    offscreen._may_cull = may
    return picture


def maniskill(name: str, states: int) -> dict[str, Any]:
    from embodied.envs.maniskill.cameras import Cameras
    from embodied.envs.maniskill.facts import SimParams
    from embodied.envs.maniskill.simulator import TaskSimulator, prepare_process

    prepare_process()
    task, given = MANISKILL[name]
    cameras, params = Cameras.of(given), SimParams(id=task, control_mode="pd_ee_delta_pos")
    ours, whole = sims = [TaskSimulator(params, "cpu", cameras, False, {}) for _ in range(2)]
    whole._may_cull = False
    table = Table()
    drawn = np.random.default_rng(0).uniform(-1, 1, (states * CHUNK, 1, ours.action_dim)).astype(np.float32)
    for sim in sims:
        sim.begin([0], [0], [{}])
    for state in range(states):
        table.measure({"everything": partial(maniskill_picture, whole), "culled": partial(maniskill_picture, ours)})
        for action in drawn[state * CHUNK : (state + 1) * CHUNK]:
            for sim in sims:
                sim.step(action)
    for sim in sims:
        sim.close()
    return {name: table.summary()}


def maniskill_picture(sim: Any) -> np.ndarray:
    sim._pictures = {}
    return sim.pictures([0], ["base_camera"])[0, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libero", nargs="*", default=SUITES)
    parser.add_argument("--maniskill", nargs="*", default=list(MANISKILL), help="some of: " + "; ".join(MANISKILL))
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 64], help="LIBERO's pictures, pixels")
    parser.add_argument("--states", type=int, default=7)
    parser.add_argument("--renderer", choices=("osmesa", "egl"), default="osmesa", help="of LIBERO")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["MUJOCO_GL"] = args.renderer  # ManiSkill imports mujoco too
    facts = machine(["mujoco", "mani_skill", "sapien", "numpy"])
    cells: dict[str, Any] = {}
    pictures: dict[str, Any] = {}
    chunks: dict[str, Any] = {}
    for name in args.maniskill:
        cells |= maniskill(name, args.states)
    for suite in args.libero:
        for size in args.sizes:
            cells |= libero(suite, size, args.states, args.renderer)
            of_cameras, of_chunk = measure(suite, size, args.states, args.renderer)
            pictures |= of_cameras
            chunks |= of_chunk
    show_variants(cells)
    show(pictures)
    show(chunks)
    found = {"cells": cells, "pictures": pictures, "chunks": chunks}
    file = "rendering" if args.renderer == "osmesa" else f"rendering_{args.renderer}"
    print(f"written: {save(file, {'arguments': vars(args), 'machine': facts, **found})}")


def show_variants(cells: dict[str, Any]) -> None:
    for cell, variants in cells.items():
        print(cell)
        for name, row in variants.items():
            other = row.get("pixels_that_differ", 0.0)
            said = f"  {other:.1%} of the pixels differ, by {row['their_difference']:.1f} of 255" if other else ""
            print(f"  {name:16s} {row['cpu_ms']:7.2f} CPU-ms  {row['ratio']:.3f}{said}", flush=True)


if __name__ == "__main__":
    main()
