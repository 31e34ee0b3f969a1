"""The speeds of many processes and machines, each with its bar: one table.

    python benchmarks/scaling.py --ray-python PYTHON
    python benchmarks/scaling.py --cells port weights

Each cell is measured by itself and put into results/scaling.json with its machine and load; those of earlier commands
stay. Nodes are network namespaces of this machine, which takes root, and an interpreter with Ray where Ray places them;
a cell that cannot be run here says why. Bars are those of an idle machine: where other work runs beside, times are
upper limits.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import _scaling_hosts as hosts
import _scaling_lab as nodes
import _scaling_runs as runs
import _scaling_weights as weights
from _measure import RESULTS, is_kept, judge, machine, save

NAME = "scaling"
Cell = Callable[[argparse.Namespace], dict[str, Any]]
CELLS: Mapping[str, Cell] = {
    "port": hosts.port, "objects": hosts.objects, "sleep": hosts.sleep, "ranks": runs.ranks, "bytes": runs.bytes_sent,
    **nodes.CELLS, "weights": weights.rate, "weights hidden": weights.hidden,
}  # fmt: skip
STALENESS = "staleness_sleeping"
"""What benchmarks/staleness.py has measured, of which the table has the ratios."""
LEAST = {name: f"wall time, {cell} / the least that is possible" for name, cell in
         (("iteration with s = 1", "beside"), ("iteration with s = 2", "two beside"))}  # fmt: skip

BARS = {
    "1 host: rows/s": (">=", 1000.0),
    "1 host: CPU ms a row more than local": ("<=", 0.4),
    "CPU more than local, over that of Ray objects": ("<=", 0.1),
    **{f"{count} hosts: rows/s over local": (">=", 0.97) for count in (1, 2, 4)},
    **{f"{count} hosts: weak scaling": (">=", 0.9) for count in (2, 4)},
    **{f"{count} ranks: weak scaling": (">=", 0.9) for count in (2, 4)},
    "bytes received over those of the rows": ("<=", 1.01),
    "furthest from 1": ("<=", 0.01),
    "lost host said after, s": ("<=", 1.0),
    "slots back after, less the simulator's start, s": ("<=", 5.0),
    "hosts and workers lost": ("<=", 0.0),
    "longer, s": ("<=", 12.0),
    "ended and named after, s": ("<=", 10.0),
    "first new iteration after, s": ("<=", 60.0),
    "checkpoint and end after, s": ("<=", 70.0),
    **dict.fromkeys(LEAST, ("<=", 1.05)),
    **{f"{place}: rate of weights over a bare broadcast's": (">=", 0.8) for place in weights.PLACES},
    "iteration over its longer half": ("<=", 1.05),
}
"""What is to be kept on an idle machine."""


def table(cells: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each bar: what was measured, and whether it was kept."""
    values = {name: value for cell in cells.values() for name, value in cell["bars"].items()}
    where = {name: cell for cell, found in cells.items() for name in found["bars"]}
    return [
        {"cell": where.get(name), "what": name, "bar": f"{sign} {limit:g}", "measured": values.get(name),
         "kept": is_kept(values[name], sign, limit) if name in values else None}
        for name, (sign, limit) in BARS.items()
    ]  # fmt: skip


def with_others(cells: dict[str, Any]) -> dict[str, Any]:
    """Adds what several cells, or another benchmark, say together."""
    file = RESULTS / f"{STALENESS}.json"
    if file.exists():
        ratios = json.loads(file.read_text(encoding="utf-8"))["ratios"]
        bars = {name: ratios[text]["median"] for name, text in LEAST.items()}
        cells["staleness"] = {"found": f"results/{file.name}", "bars": bars}
    local = cells.get("port", {}).get("found", {}).get("local", {}).get("cpu_us_per_frame", {}).get("median")
    ray = cells.get("objects", {}).get("bars", {})
    if local is not None and "Ray objects: CPU ms a row" in ray:
        more = cells["port"]["bars"]["1 host: CPU ms a row more than local"]
        ray["CPU more than local, over that of Ray objects"] = more / (ray["Ray objects: CPU ms a row"] - local / 1000)
    return cells


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=[*CELLS], choices=[*CELLS])
    parser.add_argument("--ray-python", help="interpreter with Ray beside this environment's packages")
    parser.add_argument("--rounds", type=int, default=5, help="of port, objects and sleep")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement of port and objects")
    parser.add_argument("--sleep-seconds", type=float, default=8.0, help="of one where simulators sleep")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=256, help="picture height and width of the port, pixels")
    parser.add_argument("--small", type=int, default=64, help="the same where simulators sleep")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--slots-of-host", type=int, default=4, help="where simulators sleep")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--slots-of-rank", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.1, help="seconds that a control step of a rank's env sleeps")
    parser.add_argument("--run-rounds", type=int, default=2, help="of runs with several ranks")
    parser.add_argument("--transfers", type=int, default=20, help="of weights, each after a bare broadcast")
    parser.add_argument("--mbits", type=int, default=300, help="a second, of the link over which weights are hidden")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = arguments(argv)
    file = RESULTS / f"{NAME}.json"
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else {}
    result: dict[str, Any] = {}
    for cell in args.cells:
        print(cell, flush=True)
        facts = machine(["numpy", "torch"])
        settings = {name: value for name, value in vars(args).items() if name != "ray_python"}
        if args.ray_python:  # where it lies says nothing to others
            facts["command"] = facts["command"].replace(args.ray_python, "PYTHON")
        cells[cell] = {"machine": facts, "settings": settings, **CELLS[cell](args), "load_after": os.getloadavg()[0]}
        with_others(cells)
        judge(cells[cell]["bars"], BARS)
        result = {"table": table(cells), "cells": cells}
        save(NAME, result)
    for row in result["table"]:
        kept = {True: "kept", False: "MISSED", None: "not run"}[row["kept"]]
        print(f"{row['what']:75s} {row['bar']:>8s}  {row['measured'] or 0:10.3g}  {kept}")
    return result


if __name__ == "__main__":
    main()
