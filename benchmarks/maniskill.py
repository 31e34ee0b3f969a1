"""ManiSkill env-steps a second: whole chunks with one render each, against stepping and rendering every control step.

    python benchmarks/maniskill.py --task PickCube-v1 --rounds 5

Three ways of running the same actions in two worker processes, in turn within one run:
- ``chunk``: this project's pool; a chunk of 8 control steps in the worker, one observation at its end.
- ``gym``: gymnasium's AsyncVectorEnv over this project's ManiSkill adapter; an observation at every control step.
- ``original``: AsyncVectorEnv over ManiSkill's own ``gym.make`` with its CPU wrapper.

All three are open for the whole run (SAPIEN needs 10 s of CPU for a process's first picture) and take turns, so only
the one that is measured works. The figure is the ratio of medians over rounds; CPU time stands beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from _measure import machine
from embodied.envs.maniskill import ManiSkillEnv
from rollout import CHUNK, ChunkRunner, Stepped, VectorRunner, report, timed


def original(task: str, mode: str, size: int) -> gymnasium.Env:
    """ManiSkill's env for one process, as its documentation makes it for vectors of CPU simulations."""
    os.environ.setdefault("LP_NUM_THREADS", "0")  # as in this project's workers
    import mani_skill.envs  # noqa: F401 (registers the tasks)
    from mani_skill.utils.wrappers import CPUGymWrapper

    made = gymnasium.make(
        task, obs_mode="rgb", reward_mode="normalized_dense", control_mode=mode, sim_backend="physx_cpu",
        render_backend="cpu", sensor_configs={"width": size, "height": size, "shader_pack": "minimal"},
        max_episode_steps=10**6,
    )  # fmt: skip
    return CPUGymWrapper(made, ignore_terminations=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="PickCube-v1")
    parser.add_argument("--control-mode", default="pd_ee_delta_pose")
    parser.add_argument("--size", type=int, default=128, help="camera height and width, pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=48, help="control steps an env and a round, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    init_params = {
        "id": args.task, "control_mode": args.control_mode, "camera_heights": args.size, "camera_widths": args.size,
    }  # fmt: skip
    kwargs: dict[str, Any] = {"init_params": init_params, "renderer": "cpu"}
    dims = ManiSkillEnv(**kwargs).spec.action_dim
    actions = np.random.default_rng(0).uniform(-0.3, 0.3, (args.steps, args.workers, dims)).astype(np.float32)
    facts = machine(["gymnasium", "mani_skill", "sapien", "torch", "numpy"])
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for all ways alike
    runners: dict[str, Any] = {
        "chunk": ChunkRunner(ManiSkillEnv, kwargs, args.workers, Path(tempfile.mkdtemp())),
        "gym": VectorRunner(lambda: Stepped(ManiSkillEnv, kwargs), args.workers),
        "original": VectorRunner(lambda: original(args.task, args.control_mode, args.size), args.workers),
    }
    rates: dict[str, list[float]] = {way: [] for way in runners}
    cpu: dict[str, list[float]] = {way: [] for way in runners}
    try:
        for runner in runners.values():
            runner.run(actions[:CHUNK])
        for number in range(args.rounds):
            for way, runner in runners.items():
                rate, cost = timed(runner, actions)
                rates[way].append(rate)
                cpu[way].append(cost)
                print(f"round {number + 1}  {way:9s} {rate:7.1f} env-steps/s  {cost:7.1f} CPU-ms a step", flush=True)
    finally:
        for runner in runners.values():
            runner.close()
    report(f"maniskill_{args.task}", vars(args), facts, rates, cpu)


if __name__ == "__main__":
    main()
