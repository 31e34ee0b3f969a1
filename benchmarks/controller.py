"""CPU time of a ManiSkill control step whose controller looks once where the hand is, against twice as ManiSkill does.

    python benchmarks/controller.py

Two simulators of a task take the same actions in turn, an episode each, in one process; nothing is rendered. The figure
is the median over episodes of the ratio of their CPU times.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

import numpy as np
from _measure import machine, save

STEPS = 40  # control steps of an episode


def measure(task: str, mode: str, episodes: int) -> dict[str, float]:
    from embodied.envs.maniskill.cameras import Cameras
    from embodied.envs.maniskill.facts import SimParams
    from embodied.envs.maniskill.simulator import TaskSimulator

    params, cameras = SimParams(id=task, control_mode=mode), Cameras.of({"camera_heights": 64, "camera_widths": 64})
    sims = {name: TaskSimulator(params, "cpu", cameras, False, {}) for name in ("once", "twice")}
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, 1, sims["once"].action_dim)).astype(np.float32)
    costs: list[dict[str, float]] = []
    for number in range(episodes + 1):
        order = list(sims) if number % 2 else list(reversed(sims))
        costs.append({name: episode(sims[name], number, actions, twice=name == "twice") for name in order})
    for sim in sims.values():
        sim.close()
    measured = costs[1:]  # the first warms up
    return {
        "once_cpu_ms": median(cost["once"] for cost in measured),
        "twice_cpu_ms": median(cost["twice"] for cost in measured),
        "ratio": median(cost["once"] / cost["twice"] for cost in measured),
    }


def episode(sim: Any, seed: int, actions: np.ndarray, twice: bool) -> float:
    """CPU ms of a control step."""
    sim.begin([0], [seed], [{}])
    sim._fast = None  # ManiSkill's own control step, which robots and tasks that are not known still take
    if twice:
        arm = sim.env.agent.controller.controllers["arm"]
        arm.__class__ = arm.uncached
    begun = time.process_time()
    for action in actions:
        sim.step(action)
    return (time.process_time() - begun) / len(actions) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="PullCube-v1")
    parser.add_argument("--control-modes", nargs="+", default=["pd_ee_delta_pos", "pd_ee_delta_pose"])
    parser.add_argument("--episodes", type=int, default=20)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    facts = machine(["torch", "mani_skill", "sapien", "numpy"])
    from embodied.envs.maniskill.simulator import prepare_process

    prepare_process()
    cells = {}
    for mode in args.control_modes:
        cells[f"{args.task}, {mode}"] = cell = measure(args.task, mode, args.episodes)
        print(f"{args.task}, {mode}: {cell['once_cpu_ms']:.2f} ms, {cell['ratio']:.2f} of looking twice", flush=True)
    print(save("controller", {"arguments": vars(args), "machine": facts, "cells": cells}))


if __name__ == "__main__":
    main()
