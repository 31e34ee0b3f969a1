"""CPU time a frame, chunk, record and control step of two versions of the code, measured in turn on one machine.

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before . --rounds 5

Each round runs four short benchmarks of each version, in alternating order, and reads what they say of this project's
own way: ``transport.py`` (cells free and chunk), ``scheduler.py`` (the CPU time of all its processes, start included,
because what it measures are sleeps), ``trainer.py`` and ``rollout.py``. The figure is the median of the rounds' ratios,
new over old: the two of a round ran one after the other, so what else the machine did falls on both. The benchmarks
overwrite their result files in both trees.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from _measure import machine, save

Figures = Mapping[str, float]


def of_transport(result: Any, cpu_s: float) -> Figures:
    cells = {name: cell["found"] for name, cell in result["cells"].items()}
    return {
        f"transport, {name}, {way}: {key}": found[way][key]["median"]
        for name, found in cells.items()
        for way in ("slab", "copy")
        if way in found
        for key in found[way]
        if key.startswith("cpu_us")
    }


def of_scheduler(result: Any, cpu_s: float) -> Figures:
    return {"scheduler: CPU s of the command": cpu_s}


def of_trainer(result: Any, cpu_s: float) -> Figures:
    (ours,) = (row for row in result["rows"] if row["variant"] == "ours")
    return {"trainer: CPU ms a useful record": ours["cpu_ms_per_useful"]["median"]}


def of_rollout(result: Any, cpu_s: float) -> Figures:
    return {"rollout, LIBERO: CPU ms a control step": result["cpu_ms_per_step"]["chunk"]["median"]}


BENCHMARKS: Mapping[str, tuple[str, tuple[str, ...], Callable[[Any, float], Figures]]] = {
    "transport": ("transport", ("--cells", "free", "chunk", "--rounds", "1", "--seconds", "1.5"), of_transport),
    "scheduler": (
        "scheduler",
        ("--cells", "constant", "--rounds", "1", "--records", "400", "--te", "0.002"),
        of_scheduler,
    ),
    "trainer": (
        "trainer_tiny_cpu",
        ("--device", "cpu", "--size", "tiny", "--rounds", "2", "--horizon", "6", "--group", "4", "--chances", "0.25",
         "0.5", "0.75"),
        of_trainer,
    ),
    "rollout": ("rollout_libero_10", ("--rounds", "1", "--steps", "24", "--no-original"), of_rollout),
}  # fmt: skip
"""Benchmark → its result's file, arguments, and how its figures are read."""


def measure(tree: Path, name: str) -> Figures:
    """Run a benchmark of the version in ``tree``.

    Raises:
        subprocess.CalledProcessError: it failed; its output is printed.
    """
    file, arguments, read = BENCHMARKS[name]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, f"{name}.py", *arguments], cwd=tree / "benchmarks", env=environment, capture_output=True,
        text=True,
    encoding="utf-8")  # fmt: skip
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        done.check_returncode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return read(json.loads((tree / "benchmarks" / "results" / f"{file}.json").read_text(encoding="utf-8")), cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--benchmarks", nargs="+", default=[*BENCHMARKS], choices=[*BENCHMARKS])
    args = parser.parse_args()
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    found: dict[str, dict[str, list[float]]] = {}
    facts = machine(("torch", "numpy"))
    for number in range(args.rounds):
        for name in args.benchmarks:
            for version in (["old", "new"], ["new", "old"])[number % 2]:
                for figure, value in measure(trees[version], name).items():
                    found.setdefault(figure, {"old": [], "new": []})[version].append(value)
        print(f"round {number + 1} of {args.rounds}", flush=True)
    rows = [
        {"figure": figure, "old": median(both["old"]), "new": median(both["new"]),
         "new over old": median(new / old for old, new in zip(both["old"], both["new"], strict=True)), "all": both}
        for figure, both in found.items()
    ]  # fmt: skip
    for row in rows:
        print(f"{row['figure']:58s} {row['old']:10.2f} {row['new']:10.2f}  {row['new over old']:.3f}")
    print("wrote", save("versions", {"machine": facts, "settings": {"rounds": args.rounds}, "rows": rows}))


if __name__ == "__main__":
    main()
