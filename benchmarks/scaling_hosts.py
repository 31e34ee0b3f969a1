"""What simulator hosts cost: the same env slots as workers of this process, and on hosts that send rows over TCP.

    python benchmarks/scaling_hosts.py --rounds 5

- ``port``: rows of 393 kB (two pictures of 256×256) that the env only draws; each slot is stepped again as soon as it
  has answered. The local pool, one host and two, open at the same time and measured in turn; medians over rounds. CPU
  time is that of all processes: this one, hosts, workers.
- ``sleep``: simulators whose chunks take 120 ms (log-normal), as LIBERO's do in software, in which they sleep; a worker
  each: 1, 2 and 4 hosts against a local pool of as many slots, and against one host (weak scaling).

Bytes received are compared with rows × the bytes of an observation.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from _envs import CostEnv
from _measure import judge, machine, save, spread
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
    return {"found": found, "bars": bars}


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
    found = interleaved(ways, args.rounds, args.seconds)
    bars, first = {}, args.hosts[0]
    for hosts in args.hosts:
        own = f"{hosts} hosts, {hosts * each} slots"
        bars[f"{hosts} hosts: rows/s over local"] = ratio(found, own, f"local, {hosts * each} slots", "frames_per_s")
        weak = ratio(found, own, f"{first} hosts, {first * each} slots", "frames_per_s") * first / hosts
        bars[f"{hosts} hosts: weak scaling"] = weak
    return {"found": found, "bars": bars}


CELLS = {"port": port, "sleep": sleep}

BARS = {
    "1 host: rows/s": (">=", 1000.0),
    "1 host: CPU ms a row more than local": ("<=", 0.4),
    "bytes received over those of the rows": ("<=", 1.01),
    **{f"{hosts} hosts: rows/s over local": (">=", 0.97) for hosts in (1, 2, 4)},
    **{f"{hosts} hosts: weak scaling": (">=", 0.9) for hosts in (1, 2, 4)},
}
"""What is to be kept on an idle machine."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=[*CELLS], choices=[*CELLS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=256, help="picture height and width of the port, pixels")
    parser.add_argument("--small", type=int, default=64, help="the same where simulators sleep")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--slots-of-host", type=int, default=4, help="where simulators sleep")
    parser.add_argument("--name", default="scaling_hosts", help="of the result's file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = arguments(argv)
    result: dict[str, Any] = {"machine": machine(["numpy"]), "settings": vars(args), "cells": {}}
    for cell in args.cells:
        print(cell)
        got = CELLS[cell](args)
        got["kept"] = judge(got["bars"], BARS)
        got["found"] = {
            way: {figure: spread(values) for figure, values in figures.items()} for way, figures in got["found"].items()
        }
        result["cells"][cell] = got
        result["load_after"] = os.getloadavg()[0]
        print("wrote", save(args.name, result))
    return result


if __name__ == "__main__":
    main()
