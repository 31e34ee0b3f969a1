"""How long ``python -m embodied.tools.doctor`` takes: the whole command, with and without overrides.

    python benchmarks/doctor.py --rounds 3

Cases take turns within a round. For each: wall seconds and CPU seconds of the command with all processes that it has
started, and its findings by status. A warm-up of each comes first: a machine's first doctor reads packages from a
disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _measure import judge, machine, save, spread

CASES = {"machine": [], "libero_10": ["env=libero_10"], "maniskill_pickcube": ["env=maniskill_pickcube"]}
BARS = {"wall_s": ("<=", 20.0)}
ROOT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before, which do not count")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args(argv)
    facts = machine(["torch", "hydra-core"])
    seconds: dict[str, dict[str, list[float]]] = {name: {"wall_s": [], "cpu_s": []} for name in args.cases}
    findings: dict[str, dict[str, int]] = {}
    for number in range(-args.warm_up, args.rounds):
        for name in args.cases:
            taken, findings[name] = doctor(CASES[name])
            for what, value in taken.items():
                if number >= 0:
                    seconds[name][what].append(value)
    cells: dict[str, Any] = {}
    kept = {}
    for name, own in seconds.items():
        cells[name] = {what: spread(values) for what, values in own.items()} | {"findings": findings[name]}
        print(name, findings[name])
        kept[name] = judge({what: cells[name][what]["median"] for what in own}, BARS)
    load = os.getloadavg()[0]
    save("doctor", {**facts, "load_after": load, "rounds": args.rounds, "cells": cells, "bars_kept": kept})


def doctor(overrides: Sequence[str]) -> tuple[dict[str, float], dict[str, int]]:
    """Runs the command once; returns its wall and CPU seconds, and how many findings have each status."""
    command = [sys.executable, "-m", "embodied.tools.doctor", *overrides, "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    began, before = time.monotonic(), cpu_s()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=environment)
    taken = {"wall_s": time.monotonic() - began, "cpu_s": cpu_s() - before}
    return taken, Counter(finding["status"] for finding in json.loads(done.stdout)["findings"])


def cpu_s() -> float:
    """CPU seconds of processes that this one, or one that it has started, has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
