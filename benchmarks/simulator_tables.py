"""Measures the tables by which LIBERO and ManiSkill say what their simulators take of a worker's memory.

    python benchmarks/simulator_tables.py [CASE …]

Each case is a process of its own, whose slots go to each task in turn: a reset, twelve random control steps and the
pictures before and after them. Rows go beside those of ``simulator_memory.py`` into its file; ``tests/envs/
test_host_memory.py`` holds ``envs/*/host_memory.py`` against them. MB are 2²⁰ bytes: anonymous pages and the driver's
shared memory, and address space.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from _measure import RESULTS

CHUNK = 12
IN_ORDER = list(range(10))
VISITS = [random.Random(0).randrange(10) for _ in range(20)]


def libero(suite: str, order: list[int], side: int = 256, mesh_cell: float = 0.0, keeps: int = 20) -> dict[str, Any]:
    return {"suite": suite, "order": order, "side": side, "mesh_cell": mesh_cell, "keeps": keeps, "slots": 1}


def maniskill(name: str, side: int = 128, slots: int = 1) -> dict[str, Any]:
    return {"id": f"{name}-v1", "order": [0], "side": side, "slots": slots}


CASES: dict[str, dict[str, dict[str, Any]]] = {
    "tasks": {
        **{suite: libero(suite, IN_ORDER) for suite in ("libero_object", "libero_spatial", "libero_goal", "libero_10")},
        "libero_90, every ninth": libero("libero_90", [9 * number for number in IN_ORDER]),
        "libero_object, 64 pixels": libero("libero_object", [0, 1], 64),
        "libero_object, 128 pixels": libero("libero_object", [0, 1], 128),
        "libero_object, 512 pixels": libero("libero_object", [0, 1], 512),
        "libero_10, 512 pixels": libero("libero_10", [0, 1], 512),
        "quickstart_libero": libero("libero_object", [0, 2, 7], 64, 0.01),
        "libero_10, 64 pixels, cells": libero("libero_10", [0, 1, 2], 64, 0.01),
        "libero_object_swap": libero("libero_object_swap", [0, 1, 2]),
    },
    "rebuilt": {
        suite: libero(suite, VISITS, keeps=3)
        for suite in ("libero_object", "libero_spatial", "libero_goal", "libero_10")
    }
    | {"libero_90": libero("libero_90", [9 * task for task in VISITS], keeps=3)},
    "scenes": {
        **{name: maniskill(name) for name in ("PickCube", "PushCube", "PullCube", "StackCube", "PegInsertionSide")},
        **{name: maniskill(name) for name in ("LiftPegUpright", "PlaceSphere", "RollBall")},
        "PickCube, 512 pixels": maniskill("PickCube", 512),
        "PickCube, 4 slots": maniskill("PickCube", slots=4),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="none: all")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(play(json.loads(args.child))))
        return
    for table, cases in CASES.items():
        for case in args.cases or cases:
            if case in cases:
                keep(table, case, row_of(table, cases[case], child(cases[case])))


def child(settings: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", json.dumps(settings)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def play(settings: dict[str, Any]) -> dict[str, Any]:
    """Goes to the tasks in this process; returns MB before, and after each."""
    from embodied.types import Start

    envs = [make(settings) for _ in range(settings["slots"])]
    for env in envs:
        env.prepare()
    spec, drawn = envs[0].spec, np.random.default_rng(0)
    outs = {name: np.zeros(field.shape, field.dtype) for name, field in spec.obs.items()}
    found: dict[str, Any] = {"imports": taken(), "measured": [], "addresses": [], "peaks": []}
    for task in settings["order"]:
        for env in envs:
            env.reset(Start(task, 0, 0))
            env.observe(outs)
            for action in spec.action.sample(drawn, CHUNK):
                env.step(action)
            env.observe(outs)
        found["measured"].append(taken())
        found["addresses"].append(status("VmPeak"))
        found["peaks"].append(status("VmHWM"))
    return found


def make(settings: dict[str, Any]) -> Any:
    sizes = {"camera_heights": settings["side"], "camera_widths": settings["side"]}
    if "id" in settings:
        from embodied.envs.maniskill import ManiSkillEnv

        return ManiSkillEnv({"id": settings["id"], **sizes})
    from embodied.envs.libero import LiberoEnv

    sizes["mesh_cell"] = settings["mesh_cell"]
    return LiberoEnv(settings["suite"], max_cached_simulators=settings["keeps"], init_params=sizes)


def taken() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return round(sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))) / 1024)


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(round(int(line.split()[1]) / 1024) for line in lines if line.startswith(name))


def row_of(table: str, settings: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The part of what was found that the table has."""
    if table == "tasks":
        return {**settings, **found}
    if table == "rebuilt":
        return {**settings, "most": max(found["measured"]), "measured": found["measured"]}
    return {**settings, "imports": found["imports"], "measured": found["measured"][0], "peak": found["peaks"][0]}


def keep(table: str, case: str, row: dict[str, Any]) -> None:
    """Writes a row into the file of the other rows."""
    file = RESULTS / "simulator_memory.json"
    known = json.loads(file.read_text(encoding="utf-8"))
    known[table] = {**known.get(table, {}), case: row}
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    print(table, case, row, flush=True)


if __name__ == "__main__":
    main()
