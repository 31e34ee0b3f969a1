"""The table of docs/results/libero_suite.md, from runs of the experiment:

    python -m embodied.train experiment=libero_suite runner.seed=2 runner.experiment_name=seed-2
    python benchmarks/libero_suite.py runs/seed-2 …

Each run brings its first and its last evaluation, and the success of its iterations. Runs that stand in
benchmarks/results/ and are not named stay there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _measure import machine, save, stored
from quickstart import BEGIN, DOCS, fill

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


def table(runs: dict[str, Any]) -> str:
    """Writes successes before and after, a column for each run, in Markdown."""
    lines = [
        "| task | " + " | ".join(f"{name}: of {run['episodes_per_task']}" for name, run in runs.items()) + " |",
        "|---" * (len(runs) + 1) + "|",
    ]
    for name in next(iter(runs.values()))["before"]:
        pairs = (f"{run['before'][name]} → {run['after'][name]}" for run in runs.values())
        short = name.removeprefix("pick up the ").removesuffix(" and place it in the basket")
        lines.append(f"| {short} | {' | '.join(pairs)} |")
    whole = (f"{run['of_all']['before']} → {run['of_all']['after']}, {_points(run)}" for run in runs.values())
    return "\n".join([*lines, f"| all | {' | '.join(whole)} |"])


def _points(run: dict[str, Any]) -> str:
    """Writes the difference with its interval, in points."""
    middle, low, high = (f"{100 * value:+.0f}" for value in run["difference"])
    return f"{middle} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    runs = parser.parse_args().runs
    facts = machine(["torch", "mujoco"]) | {"command": "python benchmarks/libero_suite.py RUN"}
    found: dict[str, Any] = {"machine": facts, "runs": stored("libero_suite").get("runs", {})}
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
    fill(DOCS / "libero_suite.md", BEGIN.replace("quickstart.py", "libero_suite.py"), table(found["runs"]))
    print(save("libero_suite", found))


if __name__ == "__main__":
    main()
