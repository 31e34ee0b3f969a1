"""What it costs to get observations out of env processes, against gymnasium's AsyncVectorEnv(shared_memory=True).

    python benchmarks/transport.py --rounds 3

A frame is one observation of one env: two 224×224 pictures and 8 numbers, 301,088 bytes, returned for one action.
- ``free``: the env only draws. 16 envs, 2 workers; drawn into the slab (``slab``), or into the env's own arrays and
  copied (``copy``); the peer has its one process an env.
- ``busy``: each step computes 5 ms. What is left over the same env in this process is the overhead.
- ``sleep``: each step sleeps 5 ms (log-normal), one process an env, as where a simulator waits for a GPU.
- ``chunk``: 8 steps of 0.6 ms an answer: a chunk in the worker with one picture, against 8 steps from outside.
- ``memory``: an iteration's records in the slab: PSS of all processes over the bytes of the observations, minor page
  faults a frame, CPU of idle workers.

All ways of a cell are open at the same time and measured in turn, medians over rounds. CPU time of the process tree
(/proc schedstat) a frame stands beside the wall clock, since it repeats on a machine that is shared.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import gymnasium
import numpy as np
from _envs import NO_LIMIT, CostEnv
from _measure import cpu_seconds, machine, minor_faults, pss_bytes, save, spread

from embodied.runtime.channel import Command, Kind
from embodied.runtime.pool import Deadlines, Pool, PoolConfig
from embodied.runtime.reward import ShapedReward
from embodied.runtime.slab import Slab, runtime_fields
from embodied.types import ArraySpec, Start

PATIENT = Deadlines(300, 300, 300)


class Way(Protocol):
    def round(self) -> int:
        """One answer to every env; how many there are."""
        ...

    def pids(self) -> list[int]: ...

    def close(self) -> None: ...


class PoolWay:
    """This project's pool, in rounds (``ready=False``), or each env again as soon as it has answered."""

    def __init__(
        self, env: dict[str, Any], envs: int, workers: int, chunk: int = 1, ready: bool = False, rows: int = 0
    ) -> None:
        spec = CostEnv(**env).spec
        fields = {**spec.obs, "actions": ArraySpec((chunk, spec.action_dim), "float32"), **runtime_fields(chunk)}
        self.slab, self._envs, self._ready = Slab.create(fields, rows or 2 * envs), envs, ready
        folder = Path(tempfile.mkdtemp())
        config = PoolConfig(envs, workers, "_envs.CostEnv", env, ShapedReward(), PATIENT, folder)
        self.pool = Pool(config, self.slab)
        self._next = envs  # row of the next observation
        self._row = list(range(envs))
        for slot in range(envs):
            self.pool.send(Command(Kind.RESET, slot, next_row=slot, task_id=0, seed=slot, max_steps=NO_LIMIT))
        self._wait(envs)

    def _wait(self, count: int) -> list[int]:
        done: list[int] = []
        while len(done) < count:
            done += [event.slot for event in self.pool.recv(count - len(done))]
        return done

    def _send(self, slot: int) -> None:
        row = self._row[slot]
        self._row[slot] = self._next if self.slab.rows > 2 * self._envs else (row + self._envs) % self.slab.rows
        self._next = (self._next + 1) % self.slab.rows
        self.pool.send(Command(Kind.STEP, slot, row=row, next_row=self._row[slot]))

    def round(self) -> int:
        if not self._ready:
            for slot in range(self._envs):
                self._send(slot)
            return len(self._wait(self._envs))
        if not getattr(self, "_flying", False):
            self._flying = True
            for slot in range(self._envs):
                self._send(slot)
        count = 0
        while count < self._envs:
            done = self._wait(1)
            for slot in done:
                self._send(slot)
            count += len(done)
        return count

    def pids(self) -> list[int]:
        return self.pool.pids

    def close(self) -> None:
        self.pool.close()
        self.slab.close()


class GymEnv(gymnasium.Env):
    """The same env with gymnasium's interface."""

    def __init__(self, env: dict[str, Any]) -> None:
        self._env = CostEnv(**env)
        self._out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in self._env.spec.obs.items()}
        boxes = {
            name: gymnasium.spaces.Box(0 if array.dtype == np.uint8 else -np.inf, 255, array.shape, array.dtype.type)
            for name, array in self._out.items()
        }
        self.observation_space = gymnasium.spaces.Dict(boxes)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self._env.spec.action_dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._env.reset(Start(0, 0, seed or 0))
        self._env.observe(self._out)
        return self._out, {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        result = self._env.step(action)
        self._env.observe(self._out)
        return self._out, result.reward, False, False, {}


class GymWay:
    """AsyncVectorEnv, one process an env; a chunk is that many steps."""

    def __init__(self, env: dict[str, Any], envs: int, chunk: int = 1, shared_memory: bool = True) -> None:
        makers = [lambda: GymEnv(env)] * envs
        self._vector = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=shared_memory)
        self._vector.reset(seed=list(range(envs)))
        self._envs, self._chunk = envs, chunk
        self._actions = np.zeros((envs, CostEnv(**env).spec.action_dim), np.float32)

    def round(self) -> int:
        for _ in range(self._chunk):
            self._vector.step(self._actions)
        return self._envs

    def pids(self) -> list[int]:
        return [process.pid for process in self._vector.processes]

    def close(self) -> None:
        self._vector.close()


class InProcess:
    """The same work in this process: the floor under every transport."""

    def __init__(self, env: dict[str, Any], chunk: int = 1) -> None:
        self._env, self._chunk = CostEnv(**env), chunk
        self._env.reset(Start(0, 0, 0))
        self._out = {name: np.zeros(spec.shape, spec.dtype) for name, spec in self._env.spec.obs.items()}
        self._action = np.zeros(self._env.spec.action_dim, np.float32)

    def round(self) -> int:
        for _ in range(self._chunk):
            self._env.step(self._action)
        self._env.observe(self._out)
        return 1

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def measure(way: Way, seconds: float) -> dict[str, float]:
    """Frames a second and CPU-µs and minor faults a frame over all processes of ``way`` and this one."""
    pids = [os.getpid(), *way.pids()]
    way.round()
    frames, faults = 0, minor_faults(pids)
    cpu, began = cpu_seconds(pids), time.perf_counter()
    while (wall := time.perf_counter() - began) < seconds:
        frames += way.round()
    return {
        "frames_per_s": frames / wall,
        "cpu_us_per_frame": 1e6 * (cpu_seconds(pids) - cpu) / frames,
        "minor_faults_per_frame": (minor_faults(pids) - faults) / frames,
    }


def interleaved(ways: dict[str, Callable[[], Way]], rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Way → figure → a value for each round."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    with ExitStack() as opened:
        ready = {name: opened.enter_context(closing(make())) for name, make in ways.items()}
        for way in ready.values():
            measure(way, min(0.5, seconds))
        for number in range(rounds):
            for name, way in ready.items():
                got = measure(way, seconds)
                for figure, value in got.items():
                    found[name].setdefault(figure, []).append(value)
                print(
                    f"  round {number + 1}  {name:14s} {got['frames_per_s']:9.0f} frames/s "
                    f"{got['cpu_us_per_frame']:9.1f} CPU-µs a frame",
                    flush=True,
                )
    return found


def median_of(found: dict[str, dict[str, list[float]]], way: str, figure: str) -> float:
    return median(found[way][figure])


def ratio(found: dict[str, dict[str, list[float]]], way: str, to: str, figure: str) -> float:
    return median_of(found, way, figure) / median_of(found, to, figure)


def free(args: argparse.Namespace) -> dict[str, Any]:
    shape = {"size": args.size, "action_dim": 56}
    found = interleaved(
        {
            "slab": lambda: PoolWay({**shape}, args.envs, args.workers),
            "copy": lambda: PoolWay({**shape, "in_place": False}, args.envs, args.workers),
            "gym shm": lambda: GymWay({**shape}, args.envs),
            "gym pipe": lambda: GymWay({**shape}, args.envs, shared_memory=False),
        },
        args.rounds, args.seconds,
    )  # fmt: skip
    bars = {
        f"{way}: {name}": ratio(found, way, "gym shm", figure)
        for way in ("slab", "copy")
        for name, figure in (("frames/s over gym shm", "frames_per_s"), ("CPU over gym shm", "cpu_us_per_frame"))
    }
    return {"found": found, "bars": bars}


def busy(args: argparse.Namespace) -> dict[str, Any]:
    env = {"work": "busy", "step_s": args.busy_s, "size": args.size}
    found = interleaved(
        {
            "slab": lambda: PoolWay(env, args.envs, args.workers),
            "gym shm": lambda: GymWay(env, args.envs),
            "in process": lambda: InProcess(env),
        },
        args.rounds, 2 * args.seconds,
    )  # fmt: skip
    floor = median_of(found, "in process", "cpu_us_per_frame")
    bars = {
        f"{way}: CPU overhead over the env's time": (median_of(found, way, "cpu_us_per_frame") - floor)
        / (1e6 * args.busy_s)
        for way in ("slab", "gym shm")
    }
    return {"found": found, "bars": bars}


def sleep(args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"found": {}, "bars": {}}
    env = {"work": "sleep", "step_s": 0.005, "sigma": 0.4, "size": args.size}
    for envs in args.sleepers:
        print(f" {envs} envs")
        found = interleaved(
            {
                "slab": lambda envs=envs: PoolWay(env, envs, envs),  # type: ignore[misc]
                "slab, ready": lambda envs=envs: PoolWay(env, envs, envs, ready=True),  # type: ignore[misc]
                "gym shm": lambda envs=envs: GymWay(env, envs),  # type: ignore[misc]
            },
            args.rounds, args.seconds,
        )  # fmt: skip
        result["found"] |= {f"{way}, {envs} envs": figures for way, figures in found.items()}
        for way in ("slab", "slab, ready"):
            result["bars"][f"{way}: frames/s over gym shm, {envs} envs"] = ratio(found, way, "gym shm", "frames_per_s")
    return result


def chunk(args: argparse.Namespace) -> dict[str, Any]:
    env = {"work": "busy", "step_s": 0.0006, "size": args.size}
    found = interleaved(
        {
            "slab": lambda: PoolWay(env, args.envs, args.workers, chunk=8),
            "gym shm": lambda: GymWay(env, args.envs, chunk=8),
            "in process": lambda: InProcess(env, chunk=8),
        },
        args.rounds, 2 * args.seconds,
    )  # fmt: skip
    floor = median_of(found, "in process", "cpu_us_per_frame")
    over = {way: median_of(found, way, "cpu_us_per_frame") - floor for way in ("slab", "gym shm")}
    bars = {
        "slab: CPU overhead over that of gym shm": over["slab"] / over["gym shm"],
        "slab: CPU-µs of overhead a chunk": over["slab"],
        "gym shm: CPU-µs of overhead a chunk": over["gym shm"],
    }
    return {"found": found, "bars": bars}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    rows = args.envs * args.records
    with closing(PoolWay({"size": args.size}, args.envs, args.workers, rows=rows)) as way:
        for _ in range(args.records):
            way.round()  # every row has been written by a worker
        pids = [os.getpid(), *way.pids()]
        observations = sum(spec.nbytes for spec in CostEnv(size=args.size).spec.obs.values()) * rows
        pss = pss_bytes(pids)
        faults, frames = minor_faults(pids), 0
        for _ in range(args.records):
            frames += way.round()
        faults = minor_faults(pids) - faults
        idle, began = cpu_seconds(way.pids()), time.perf_counter()
        time.sleep(2 * args.seconds)
        idle = (cpu_seconds(way.pids()) - idle) / (time.perf_counter() - began)
    bars = {
        "PSS of all processes over the observations": pss / observations,
        "slab over the observations": way.slab.nbytes / observations,
        "minor faults a frame": faults / frames,
        "cores used by idle workers": idle,
    }
    return {"found": {"observation bytes": observations, "pss bytes": pss}, "bars": bars}


CELLS = {"memory": memory, "free": free, "busy": busy, "sleep": sleep, "chunk": chunk}  # memory: before others use any

BARS = {
    "slab: frames/s over gym shm": (">=", 2.0),
    "copy: frames/s over gym shm": (">=", 2.0),
    "slab: CPU over gym shm": ("<=", 0.15),
    "copy: CPU over gym shm": ("<=", 0.35),
    "slab: CPU overhead over the env's time": ("<=", 0.03),
    "slab: frames/s over gym shm, 16 envs": (">=", 1.0),
    "slab: frames/s over gym shm, 64 envs": (">=", 1.15),
    "slab: CPU overhead over that of gym shm": ("<=", 0.25),
    "PSS of all processes over the observations": ("<=", 1.10),
    "minor faults a frame": ("<=", 1.0),
    "cores used by idle workers": ("<=", 0.01),
}
"""What is to be kept."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=[*CELLS], choices=[*CELLS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="picture height and width, pixels")
    parser.add_argument("--busy-s", type=float, default=0.005)
    parser.add_argument("--sleepers", type=int, nargs="+", default=[16, 64], help="envs of the sleep cell")
    parser.add_argument("--records", type=int, default=256, help="of each env in the memory cell")
    parser.add_argument("--name", default="transport", help="of the result's file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = arguments(argv)
    result: dict[str, Any] = {"machine": machine(["gymnasium", "numpy"]), "settings": vars(args), "cells": {}}
    for cell in args.cells:
        print(cell)
        got = CELLS[cell](args)
        for name, value in got["bars"].items():
            sign, bar = BARS.get(name, ("", 0.0))
            kept = "" if not sign else ("kept" if (value >= bar) == (sign == ">=") else "MISSED")
            print(f"  {name}: {value:.3g}  {f'(bar {sign} {bar:g}: {kept})' if sign else ''}")
        got["found"] = {
            way: {figure: spread(values) for figure, values in figures.items()}
            if isinstance(figures, dict)
            else figures
            for way, figures in got["found"].items()
        }
        result["cells"][cell] = got
    result["load_after"] = os.getloadavg()[0]
    print("wrote", save(args.name, result))
    return result


if __name__ == "__main__":
    main()
