"""What it costs to get observations out of env processes, against gymnasium's AsyncVectorEnv and other libraries.

    python benchmarks/transport.py --rounds 3

A frame is one observation of one env: two 224×224 pictures and 8 numbers, 301,088 bytes, returned for one action.
- ``free``: the env only draws. 16 envs, 2 workers; drawn into the slab (``slab``), or into the env's own arrays and
  copied (``copy``); the peer is gymnasium's AsyncVectorEnv(shared_memory=True), its one process an env.
- ``busy``: each step computes 5 ms. What is left over the same env in this process is the overhead.
- ``sleep``: each step sleeps 5 ms (log-normal), one process an env, as where a simulator waits for a GPU.
- ``chunk``: 8 steps of 0.6 ms an answer: a chunk in the worker with one picture, against 8 steps from outside, and
  against a peer whose env is wrapped so that it runs the chunk itself.
- ``memory``: an iteration's records in the slab: PSS of all processes over the bytes of the observations, minor page
  faults a frame, CPU of idle workers.
- ``peers-free``, ``peers-chunk``: the same two against the libraries of ``peers/``, as many of them as are installed.

All ways of a cell are open at the same time and measured in turn, medians over rounds. CPU time of the process tree
(/proc schedstat) a frame stands beside the wall clock, since it repeats on a machine that is shared.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from _envs import CostEnv
from _measure import cpu_seconds, judge, machine, minor_faults, pss_bytes, save, spread
from _ways import GymWay, InProcess, PoolWay, Way, interleaved, median_of, ratio
from peers import PEERS, Peer, installed, versions


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
                "slab": partial(PoolWay, env, envs, envs),
                "slab, ready": partial(PoolWay, env, envs, envs, ready=True),
                "gym shm": partial(GymWay, env, envs),
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
            "gym shm": lambda: GymWay(env, args.envs, steps=8),
            "gym shm, chunk in env": lambda: GymWay(env, args.envs, chunk=8),
            "in process": lambda: InProcess(env, chunk=8),
        },
        args.rounds, 2 * args.seconds,
    )  # fmt: skip
    floor = median_of(found, "in process", "cpu_us_per_frame")
    over = {
        way: median_of(found, way, "cpu_us_per_frame") - floor for way in ("slab", "gym shm", "gym shm, chunk in env")
    }
    bars = {
        "slab: CPU overhead over that of gym shm": over["slab"] / over["gym shm"],
        "slab: CPU overhead over that of gym shm, chunk in env": over["slab"] / over["gym shm, chunk in env"],
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


def peers_free(args: argparse.Namespace) -> dict[str, Any]:
    env = {"size": args.size, "action_dim": 56}
    ours = {
        "slab": partial(PoolWay, env, args.envs, args.workers),
        "slab, 1 worker": partial(PoolWay, env, args.envs, 1),
        "copy": partial(PoolWay, {**env, "in_place": False}, args.envs, args.workers),
    }
    libraries = _libraries(args)
    return _against(libraries, ours, _ways(libraries, env, args), args, args.seconds)


def peers_chunk(args: argparse.Namespace) -> dict[str, Any]:
    env = {"work": "busy", "step_s": 0.0006, "size": args.size}
    ours = {
        "slab": partial(PoolWay, env, args.envs, args.workers, chunk=8),
        "slab, ready": partial(PoolWay, env, args.envs, args.workers, chunk=8, ready=True),
    }
    libraries = _libraries(args)
    inside = {f"{name}, chunk in env": way for name, way in _ways(libraries, env, args, chunk=8).items()}
    others = {**_ways(libraries, env, args, steps=8), **inside}
    forking_first = dict(sorted(others.items(), key=lambda item: item[0].startswith("Ray")))
    return _against(libraries, ours, forking_first, args, 2 * args.seconds)


def _libraries(args: argparse.Namespace) -> list[Peer]:
    return [peer for peer in installed() if peer.name in args.peers]


def _ways(
    libraries: list[Peer], env: dict[str, Any], args: argparse.Namespace, **answer: Any
) -> dict[str, Callable[[], Way]]:
    return {
        "gym shm": partial(GymWay, env, args.envs, **answer),
        "gym shm, no copy": partial(GymWay, env, args.envs, copy=False, **answer),
        **{peer.name: partial(peer.open, env, args.envs, args.workers, **answer) for peer in libraries},
    }


def _against(
    libraries: list[Peer], ours: Mapping[str, Callable[[], Way]], others: Mapping[str, Callable[[], Way]],
    args: argparse.Namespace, seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """How ours stand to the fastest of the others, to the fastest of those whose number of workers is ours or that have
    a process an env, and to the fastest of those that do not busy-wait."""
    found = interleaved({**ours, **others}, args.rounds, seconds)
    spinning = tuple(peer.name for peer in libraries if peer.spins)
    elsewhere = tuple(p.name for p in libraries if p.options.get("workers", args.workers) != args.workers)
    fastest = {
        "fastest peer": _fastest(found, others),
        "fastest peer of this setting": _fastest(found, [n for n in others if not n.startswith(elsewhere)]),
        "fastest peer that sleeps while it waits": _fastest(found, [n for n in others if not n.startswith(spinning)]),
    }
    bars: dict[str, float] = {}
    for which, name in fastest.items():
        print(f"  {which}: {name}")
        for way in ours:
            bars[f"{way}: frames/s over the {which}"] = ratio(found, way, name, "frames_per_s")
            bars[f"{way}: CPU over the {which}"] = ratio(found, way, name, "cpu_us_per_frame")
    how = {peer.name: peer.how for peer in libraries}
    return {"found": found, "bars": bars, "fastest": fastest, "how": how, "versions": versions(libraries)}


def _fastest(found: dict[str, dict[str, list[float]]], ways: Iterable[str]) -> str:
    return max(ways, key=lambda way: median_of(found, way, "frames_per_s"))


CELLS = {
    "memory": memory, "free": free, "busy": busy, "sleep": sleep, "chunk": chunk,
    "peers-free": peers_free, "peers-chunk": peers_chunk,
}  # fmt: skip
"""Memory comes before others use any; Ray last, because its threads must not be there when others fork."""

BARS = {
    "slab: frames/s over gym shm": (">=", 2.0),
    "copy: frames/s over gym shm": (">=", 2.0),
    "slab: CPU over gym shm": ("<=", 0.15),
    "copy: CPU over gym shm": ("<=", 0.35),
    "slab: CPU overhead over the env's time": ("<=", 0.03),
    "slab: frames/s over gym shm, 16 envs": (">=", 1.0),
    "slab: frames/s over gym shm, 64 envs": (">=", 1.15),
    "slab: CPU overhead over that of gym shm": ("<=", 0.25),
    "slab: frames/s over the fastest peer": (">=", 1.0),
    "slab: frames/s over the fastest peer of this setting": (">=", 1.0),
    "slab: frames/s over the fastest peer that sleeps while it waits": (">=", 1.0),
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
    parser.add_argument(
        "--peers", nargs="*", default=[peer.name for peer in PEERS], help="of the cells peers-…, by name"
    )
    parser.add_argument("--name", default="transport", help="of the result's file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = arguments(argv)
    result: dict[str, Any] = {"machine": machine(["gymnasium", "numpy"]), "settings": vars(args), "cells": {}}
    for cell in args.cells:
        print(cell)
        got = CELLS[cell](args)
        got["kept"] = judge(got["bars"], BARS)
        got["found"] = {
            way: {figure: spread(values) for figure, values in figures.items()}
            if isinstance(figures, dict)
            else figures
            for way, figures in got["found"].items()
        }
        result["cells"][cell] = got
        result["load_after"] = os.getloadavg()[0]
        print("wrote", save(args.name, result))  # what is there stays, should a later cell fail
    return result


if __name__ == "__main__":
    main()
