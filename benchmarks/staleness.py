"""What rollouts beside the update save (``algorithm.max_staleness`` 1 and 2), on envs that sleep.

    python benchmarks/staleness.py --rounds 3
    python benchmarks/staleness.py --rounds 3 --updates-sleep

A control step sleeps (``step_s``), so that envs take time and no core, as simulators on other cores or a GPU do. The
policy is ``openvla_oft_tiny`` with one thread for each of both sides; with ``--updates-sleep`` the passes of an update
sleep, too, as if they ran on a GPU. The same training runs in turn and beside the update, in processes of their own,
one after the other. Its time is that of all iterations, with the start of the workers. The least that is possible is
that of a run in turn whose updates cost nothing where the rollout after them is longer. A lag of 2 can take less: no
slot waits for the last episodes of an iteration. It wants two cores for itself; CPU time is of the whole run, with its
start.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _measure import judge, machine, save, spread
from true_size import FAKES

CELLS = {"in turn": 0, "beside": 1, "two beside": 2}
RUN = (
    "env=fake", "tracker=jsonl", "runner.device=cpu", "runner.save_interval=-1",
    "runner.val_check_interval=-1", "runner.val_before_train=false", "rollout.trace=false", "env.num_workers=2",
    "env.train.total_num_envs=8", "env.train.max_episode_steps=24", "algorithm.rollout_epoch=2",
    "env.train.reward_mode=dense", "runner.num_threads=1", "actor.num_threads=1",
)  # fmt: skip
COMPUTED = ("model=openvla_oft_tiny",)
SLEEPING = (
    "model=fake",
    "actor.model._target_=slow_policies.Slow",
    "+actor.model.evaluate_s=0.1",
    "actor.micro_batch_size=8",
)
LEAST = {name: f"wall time, {name} / the least that is possible" for name in CELLS if CELLS[name]}
BARS = dict.fromkeys(LEAST.values(), ("<=", 1.05))
HELPERS = Path(__file__).parents[1] / "tests" / "helpers"


def measured(folder: Path, model: Sequence[str], staleness: int, step_s: float, iterations: int) -> dict[str, float]:
    """Seconds of one training."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable, "-m", "embodied.train", *RUN, *model, f"algorithm.max_staleness={staleness}",
        f"env.train.step_s={step_s}", f"runner.max_epochs={iterations}", "runner.experiment_name=run",
        "--config-dir", str(FAKES),
    ]  # fmt: skip
    with (folder / "log").open("w", encoding="utf-8") as log:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])}
        if subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, check=False).returncode:
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


def rounds(
    count: int, model: Sequence[str], step_s: float, iterations: int
) -> Iterator[tuple[str, dict[str, float]]]:  # fmt: skip
    for index in range(count):
        for name in [*CELLS] if index % 2 == 0 else [*reversed(CELLS)]:
            with tempfile.TemporaryDirectory() as folder:
                yield name, measured(Path(folder), model, CELLS[name], step_s, iterations)


def report(result: dict[str, Any], name: str) -> None:
    """Writes benchmarks/results/NAME.json from what was measured."""
    turn = result["cells"]["in turn"]
    values = {"the least that is possible": [row["least_s"] / row["wall_s"] for row in turn]}
    for cell, text in LEAST.items():
        pairs = list(zip(turn, result["cells"][cell], strict=True))
        values |= {
            f"wall time, {cell} / in turn": [b["wall_s"] / a["wall_s"] for a, b in pairs],
            text: [b["wall_s"] / a["least_s"] for a, b in pairs],
            f"CPU time of the run, {cell} / in turn": [b["cpu_s"] / a["cpu_s"] for a, b in pairs],
        }
    ratios = {ratio: spread(numbers) for ratio, numbers in values.items()}
    kept = judge({ratio: found["median"] for ratio, found in ratios.items()}, BARS)
    print(save(name, {**result, "ratios": ratios, "bars": kept}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a control step sleeps")
    parser.add_argument("--updates-sleep", action="store_true", help="passes of an update sleep, too")
    args = parser.parse_args()
    model, results = (SLEEPING, "staleness_sleeping") if args.updates_sleep else (COMPUTED, "staleness")
    result: dict[str, Any] = machine(["torch", "numpy"])
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CELLS}
    for name, row in rounds(args.rounds, model, args.step_s, args.iterations):
        print(name, {key: round(value, 3) for key, value in row.items()}, flush=True)
        found[name].append(row)
    report({**result, "step_s": args.step_s, "cells": found}, results)


if __name__ == "__main__":
    main()
