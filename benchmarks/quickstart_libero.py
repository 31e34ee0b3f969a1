"""Whether ``make train`` shows learning: its training with several seeds, success before and after on the same starts.

    python benchmarks/quickstart_libero.py --out /tmp/libero                 # ten seeds, one run after the other
    python benchmarks/quickstart_libero.py --out /tmp/libero --report        # the report of what is there

A run that is complete is not made again. ``--at-once 2`` runs two at a time: the same numbers in other times, and the
report says so. The bar is a rise that the run itself calls one (interval and McNemar's test) in nine of ten seeds. The
report fills the table of docs/results/libero.md and writes benchmarks/results/quickstart_libero.json.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _measure import judge, machine, save
from quickstart import DOCS, Steps, fill, history

from embodied.evaluation.compare import Rate, compare
from embodied.evaluation.results import evaluation_files, read

BEGIN = "<!-- written by benchmarks/quickstart_libero.py -->"
EXPERIMENT = "quickstart_libero"
OF_TEN = 9  # seeds with a rise


def learn(steps: Steps, seed: int) -> None:
    name = f"seed-{seed}"
    steps.run(
        name, "train", f"experiment={EXPERIMENT}", f"runner.experiment_name={name}", f"runner.seed={seed}",
        "env.eval.video_cfg.save_video=false",
    )  # fmt: skip


def collect(out: Path, seeds: list[int]) -> dict[str, Any]:
    """What each complete run did, by seed."""
    runs = {}
    for seed in seeds:
        name = f"seed-{seed}"
        if not (out / f"{name}.json").exists():
            continue
        files = evaluation_files(out / "runs" / name)
        found = compare(read(str(files[0])), read(str(files[-1])))
        row, done = found.over_all, json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        runs[str(seed)] = {
            "before": _plain(row.first), "after": _plain(row.second),
            "difference": row.difference, "low": row.low, "high": row.high, "rise": found.differ and row.difference > 0,
            "wall_s": done["wall_s"], "load": done["load"],
            "returns": [
                round(row["rollout/return_mean"], 4) for row in history(out, name) if "rollout/return_mean" in row
            ],
        }  # fmt: skip
    return runs


def _plain(rate: Rate) -> dict[str, float]:
    return {"successes": rate.successes, "episodes": rate.episodes, "low": rate.low, "high": rate.high}


def table(runs: dict[str, Any]) -> str:
    titles = ("seed", "before", "after", "difference (95 % interval)", "return of each iteration, %", "wall clock")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for seed, run in runs.items():
        before, after = (f"{rate['successes']}/{rate['episodes']}" for rate in (run["before"], run["after"]))
        change = f"{100 * run['difference']:+.0f} ({100 * run['low']:+.0f} to {100 * run['high']:+.0f})"
        change += "" if run["rise"] else ", may be chance"
        course = " ".join(f"{100 * rate:.0f}" for rate in run["returns"])
        lines.append(f"| {seed} | {before} | {after} | {change} | {course} | {run['wall_s'] / 60:.1f} min |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=10, help="1, 2, … up to this one")
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps, seeds = Steps(args.out.resolve()), [*range(1, args.seeds + 1)]
    if not args.report:
        with ThreadPoolExecutor(args.at_once) as pool:
            list(pool.map(lambda seed: learn(steps, seed), seeds))
    runs = collect(steps.out, seeds)
    rises = sum(run["rise"] for run in runs.values())
    facts = {"command": f"python benchmarks/quickstart_libero.py --out FOLDER --at-once {args.at_once}"}
    result = {**machine(["torch", "mujoco", "robosuite", "numpy"]), **facts, "runs": runs}
    fill(DOCS / "libero.md", BEGIN, table(runs))
    bars = judge({"rises": rises}, {"rises": (">=", OF_TEN)} if len(runs) == 10 else {})
    print(save("quickstart_libero", {**result, "bars": bars}))


if __name__ == "__main__":
    main()
