"""What simulator hosts cost: the same env slots as workers of this process, and on hosts that send rows over TCP.

- ``port``: rows of 393 kB (two pictures of 256×256) that the env only draws; each slot is stepped again as soon as it
  has answered. The local pool, one host and two, open at the same time and measured in turn; medians over rounds. CPU
  time is that of all processes: this one, hosts, workers. Bytes received are compared with rows × the bytes of an
  observation.
- ``sleep``: simulators whose chunks take 120 ms (log-normal), as LIBERO's do in software, in which they sleep; a worker
  each: 1, 2 and 4 hosts against a local pool of as many slots, and against one host (weak scaling).
- ``objects``: rows as objects of Ray, from actors on another node, into the same rows as a pool's; CPU time of all
  processes on both nodes, Ray's own included.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import _scaling_lab as nodes
from _envs import CostEnv
from _measure import cpu_seconds, descendants, spread
from _ways import HostsWay, PoolWay, interleaved, median_of, ratio

PORT = {"local": 0, "1 host": 1, "2 hosts": 2}


def port(args: argparse.Namespace) -> dict[str, Any]:
    env = {"size": args.size}
    shape = {"env": env, "envs": args.envs, "workers": args.workers, "chunk": 8, "ready": True}
    ways = {
        name: partial(HostsWay, hosts, **shape) if hosts else partial(PoolWay, **shape) for name, hosts in PORT.items()
    }
    found = interleaved(ways, args.rounds, args.seconds)
    bars = {
        "1 host: rows/s": median_of(found, "1 host", "frames_per_s"),
        "1 host: rows/s over local": ratio(found, "1 host", "local", "frames_per_s"),
        "1 host: CPU ms a row more than local": (
            median_of(found, "1 host", "cpu_us_per_frame") - median_of(found, "local", "cpu_us_per_frame")
        ) / 1000,
        "bytes received over those of the rows": _bytes(env, args),
    }  # fmt: skip
    return {"found": _spreads(found), "bars": bars}


def _spreads(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    return {way: {figure: spread(values) for figure, values in figures.items()} for way, figures in found.items()}


def _bytes(env: dict[str, Any], args: argparse.Namespace) -> float:
    way = HostsWay(1, env, args.envs, args.workers)
    (before,), rows = way.pool.traffic.values(), sum(way.round() for _ in range(20))
    (after,) = way.pool.traffic.values()
    way.close()
    return (after[1] - before[1]) / (rows * sum(spec.nbytes for spec in CostEnv(**env).spec.obs.values()))


def sleep(args: argparse.Namespace) -> dict[str, Any]:
    env, each = {"work": "sleep", "step_s": 0.12, "sigma": 0.4, "size": args.small}, args.slots_of_host
    ways: dict[str, Any] = {}
    for hosts in args.hosts:
        slots = hosts * each
        ways[f"local, {slots} slots"] = partial(PoolWay, env, slots, slots, ready=True)
        ways[f"{hosts} hosts, {slots} slots"] = partial(HostsWay, hosts, env, slots, slots, ready=True)
    found = interleaved(ways, args.rounds, args.sleep_seconds)
    bars, first = {}, args.hosts[0]
    for hosts in args.hosts:
        own = f"{hosts} hosts, {hosts * each} slots"
        bars[f"{hosts} hosts: rows/s over local"] = ratio(found, own, f"local, {hosts * each} slots", "frames_per_s")
        weak = ratio(found, own, f"{first} hosts, {first * each} slots", "frames_per_s") * first / hosts
        bars[f"{hosts} hosts: weak scaling"] = weak
    return {"found": _spreads(found), "bars": bars}


@nodes.needs
def objects(args: argparse.Namespace) -> dict[str, Any]:
    """CPU time of a row as an object of Ray, of all processes on two nodes."""
    script = str(Path(__file__).parent / "_ray_objects.py")
    with nodes.cluster(args, "a", "b") as made:
        settings = json.dumps({"size": args.size, "envs": args.envs, "workers": args.workers})
        out = made.folder / "out"
        with out.open("wb") as file, (made.folder / "err").open("wb") as errors:
            process = made.popen("a", [made.python, script, settings], stdout=file, stderr=errors)

        def rows() -> int:
            """Rows so far; the script says them ten times a second."""
            if process.poll() is not None:
                raise SystemExit((made.folder / "err").read_text(encoding="utf-8")[-3000:])
            lines = [line for line in out.read_text(encoding="utf-8").splitlines() if line.isdecimal()]
            return int(lines[-1]) if lines else 0

        def used() -> float:
            tops = [process.pid, *(node.pid for node in made.nodes.values())]
            return cpu_seconds({pid for top in tops for pid in descendants(top)})

        try:
            nodes.when(lambda: rows() > 5 * args.envs)
            found: dict[str, list[float]] = {"frames_per_s": [], "cpu_us_per_frame": []}
            for _ in range(args.rounds):
                before, cpu, began = rows(), used(), time.perf_counter()
                time.sleep(args.seconds)
                got, cpu, wall = rows() - before, used() - cpu, time.perf_counter() - began
                found["frames_per_s"].append(got / wall)
                found["cpu_us_per_frame"].append(1e6 * cpu / got)
        finally:
            process.kill()
            process.wait()
    return {"found": {"Ray objects": {name: spread(values) for name, values in found.items()}},
            "bars": {"Ray objects: CPU ms a row": median(found["cpu_us_per_frame"]) / 1000}}  # fmt: skip
