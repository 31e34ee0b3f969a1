"""Runs whose evaluations and costs are chosen, and evaluations of their checkpoints, made without a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from reported_runs import change_evaluation, under, write_run

from embodied.lib.weights_folder import identity
from embodied.report.reading import read
from embodied.report.time_to_success import rows
from embodied.report.time_to_success.measure import rows_of

KEYS = {"max_steps": 9, "seed": 1}


def timed_run(
    folder: Path, successes: dict[int, int], seed: int = 1, costs: bool = True, keys: dict[str, Any] = KEYS,
    iterations: int = 4,
) -> Path:  # fmt: skip
    """A run of ``iterations`` iterations of 100 s, 150 CPU seconds, 500 control steps and 16 episodes, with evaluations
    of 100 episodes. Start-up took 10 s and 20 CPU seconds."""
    write_run(folder, iterations, tuple(successes), 100, seed=seed, tasks=("stack the cubes",))
    for iteration, count in successes.items():
        change_evaluation(folder, iteration, lambda found, count=count: solve(found, count))
        change_evaluation(folder, iteration, under("named", f"hash{seed}"))
        change_evaluation(folder, iteration, lambda found: found["protocol"].update(keys={**keys, "seed": seed}))
    made = [{"step": step, "rollout/env_steps": 500, "rollout/episodes": 16, "time/iteration_s": 100.0}
            for step in range(1, iterations + 1)]  # fmt: skip
    for row in made:
        if costs:
            row |= {"time/run_s": 10 + 100.0 * row["step"], "time/run_cpu_s": 20 + 150.0 * row["step"]}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    if costs:
        cost(folder, True)
    return folder


def solve(found: dict[str, Any], count: int) -> None:
    for number, episode in enumerate(found["episodes"]):
        episode["success"] = number < count


def cost(folder: Path, *whole: bool) -> None:
    launches = {
        str(number): {"hardware": "2 × CPU", "processes": 1, "wall_s": 1.0, "cpu_s": 1.0, "whole": one}
        for number, one in enumerate(whole, 1)
    }
    content = {"policy": {"parameters": 1000, "trained": 100}, "launches": launches}
    (folder / "costs.json").write_text(json.dumps(content), encoding="utf-8")


def rows_from(*folders: Path, protocol: str | None = None) -> list[rows.Row]:
    return rows_of([read(str(folder)) for folder in folders], protocol)


def checkpoint(folder: Path, iteration: int) -> dict[str, Any]:
    """Writes what of a checkpoint says whose it is; returns what an evaluation of it notes."""
    meta = {"iteration": iteration, "parameters": {"w": [3, 4], "b": [4]}, "checksums": {"x": str(folder)},
            "trainer": {"weight_version": 1}}  # fmt: skip
    place = folder / "checkpoints" / f"{iteration:06d}"
    place.mkdir(parents=True)
    (place / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return {"path": f"runs/x/checkpoints/{iteration:06d}", "identity": identity(meta)}


def evaluated(folder: Path, of: dict[str, Any], successes: int) -> Path:
    timed_run(folder, {0: successes})
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["runner"]["only_eval"] = True
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    change_evaluation(folder, 0, lambda found: found.update(checkpoint=of))
    return folder
