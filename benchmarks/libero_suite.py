"""The table of docs/results/libero_suite.md, from runs of the two experiments:

    python -m embodied.tools.demos env=libero_object_64 protocol=held_out protocol.held_out_states=20 \\
        episodes=600 noise_std=0.1 demos.mistakes=0.4
    python -m embodied.sft experiment=libero_suite_sft
    python -m embodied.train experiment=libero_suite runner.seed=1 runner.experiment_name=seed-1
    python benchmarks/libero_suite.py runs/seed-1 …

Each run brings its first and its last evaluation, and the success of its iterations.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _measure import machine, save

from embodied.evaluation.compare import compare
from embodied.evaluation.results import read
from embodied.observe.statistics import wilson


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Reads a run's first and last evaluation, without the row over all tasks."""
    files = sorted((run / "eval").glob("*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in (files[0], files[-1])]
    return [one | {"tasks": [row for row in one["tasks"] if row["task_id"] >= 0]} for one in found]


def cell(rows: list[dict[str, Any]]) -> str:
    """Writes successes of all episodes with their 95 % interval."""
    good, tried = (sum(row[key] for row in rows) for key in ("successes", "episodes"))
    low, high = wilson(good, tried)
    return f"{good}/{tried} = {good / tried:.0%} ({low:.0%} to {high:.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = parser.parse_args().runs
    found: dict[str, Any] = {"machine": machine(["torch", "mujoco"]), "runs": {}}
    for run in runs:
        first, last = evaluations(run)
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        curve = [json.loads(line).get("rollout/success_rate") for line in lines]
        files = sorted((run / "eval").glob("*.json"))
        paired = compare(read(str(files[0])), read(str(files[-1])))
        costs = json.loads((run / "costs.json").read_text(encoding="utf-8"))["launches"]
        found["runs"][run.name] = {
            "before": {row["instruction"]: row["successes"] for row in first["tasks"]},
            "after": {row["instruction"]: row["successes"] for row in last["tasks"]},
            "episodes_per_task": first["tasks"][0]["episodes"],
            "of_all": {"before": cell(first["tasks"]), "after": cell(last["tasks"])},
            "difference": [paired.over_all.difference, paired.over_all.low, paired.over_all.high],
            "p_value": paired.p_value,
            "sampled_success_of_iterations": curve,
            "wall_s": sum(part["wall_s"] for part in costs.values()),
            "cpu_s": sum(part["cpu_s"] for part in costs.values()),
        }
    print("| task | " + " | ".join(run.name for run in runs) + " |")
    names = list(next(iter(found["runs"].values()))["before"])
    for name in names:
        pairs = (f"{run['before'][name]} → {run['after'][name]}" for run in found["runs"].values())
        print(f"| {name} | {' | '.join(pairs)} |")
    print("| all | " + " | ".join(" → ".join(run["of_all"].values()) for run in found["runs"].values()) + " |")
    print(save("libero_suite", found))


if __name__ == "__main__":
    main()
