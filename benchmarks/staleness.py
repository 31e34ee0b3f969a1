"""What a rollout beside the update saves (``algorithm.max_staleness=1``), on envs that sleep.

    python benchmarks/staleness.py --rounds 3

A control step sleeps (``step_s``), so that envs take time and no core, as simulators on other cores or a GPU do. The
policy is ``openvla_oft_tiny`` with one thread for each of both sides. The same training runs in turn and beside the
update, in processes of their own, one after the other. Its time is that of all iterations, with the start of the
workers. The least that is possible is that of a run in turn whose updates cost nothing where the rollout after them is
longer. It wants two cores for itself; CPU time is of the whole run, with its start.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import judge, machine, save, spread
from true_size import FAKES

CELLS = {"in turn": 0, "beside": 1}
RUN = (
    "env=fake", "model=openvla_oft_tiny", "tracker=jsonl", "runner.device=cpu", "runner.save_interval=-1",
    "runner.val_check_interval=-1", "runner.val_before_train=false", "rollout.trace=false", "env.num_workers=2",
    "env.train.total_num_envs=8", "env.train.max_episode_steps=24", "algorithm.rollout_epoch=2",
    "env.train.reward_mode=dense", "runner.num_threads=1", "actor.num_threads=1",
)  # fmt: skip
BARS = {"wall time, beside / the least that is possible": ("<=", 1.05)}


def measured(folder: Path, staleness: int, step_s: float, iterations: int) -> dict[str, float]:
    """Seconds of one training."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable, "-m", "embodied.train", *RUN, f"algorithm.max_staleness={staleness}",
        f"env.train.step_s={step_s}", f"runner.max_epochs={iterations}", "runner.experiment_name=run",
        "--config-dir", str(FAKES),
    ]  # fmt: skip
    with (folder / "log").open("w", encoding="utf-8") as log:
        if subprocess.run(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
            raise SystemExit(f"the training failed:\n{(folder / 'log').read_text(encoding='utf-8')[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rollouts, updates = ([row[f"time/{part}_s"] for row in rows] for part in ("rollout", "train"))
    longer = sum(map(max, rollouts[1:], updates[:-1]))
    return {
        "wall_s": (wall := sum(row["time/iteration_s"] for row in rows)),
        "rollouts_s": sum(rollouts),
        "updates_s": sum(updates),
        "least_s": wall - sum(rollouts) - sum(updates) + rollouts[0] + longer + updates[-1],
        "staleness_mean": rows[-1]["train/staleness_mean"],
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def rounds(count: int, step_s: float, iterations: int) -> Iterator[tuple[str, dict[str, float]]]:
    for index in range(count):
        for name in [*CELLS] if index % 2 == 0 else [*reversed(CELLS)]:
            with tempfile.TemporaryDirectory() as folder:
                yield name, measured(Path(folder), CELLS[name], step_s, iterations)


def report(result: dict[str, Any]) -> None:
    """Writes benchmarks/results/staleness.json from what was measured."""
    pairs = list(zip(result["cells"]["in turn"], result["cells"]["beside"], strict=True))
    values = {
        "wall time, beside / in turn": [b["wall_s"] / a["wall_s"] for a, b in pairs],
        "the least that is possible": [a["least_s"] / a["wall_s"] for a, _ in pairs],
        next(iter(BARS)): [b["wall_s"] / a["least_s"] for a, b in pairs],
        "CPU time of the run, beside / in turn": [b["cpu_s"] / a["cpu_s"] for a, b in pairs],
    }
    ratios = {name: spread(numbers) for name, numbers in values.items()}
    kept = judge({name: ratio["median"] for name, ratio in ratios.items()}, BARS)
    print(save("staleness", {**result, "ratios": ratios, "bars": kept}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a control step sleeps")
    args = parser.parse_args()
    result: dict[str, Any] = machine(["torch", "numpy"])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CELLS}
    for name, row in rounds(args.rounds, args.step_s, args.iterations):
        print(name, {key: round(value, 3) for key, value in row.items()}, flush=True)
        found[name].append(row)
    report({**result, "step_s": args.step_s, "cells": found})


if __name__ == "__main__":
    main()
