"""What older weights buy and cost where a run learns: ``make train``'s training with ``max_staleness`` 0 to 2.

    python benchmarks/staleness_quickstart.py --out /tmp/staleness            # three seeds of each, one after the other
    python benchmarks/staleness_quickstart.py --out /tmp/staleness --report   # the report of what is there

Simulators and updates compute on the same two cores here, so a lag saves the time in which a core has nothing to do.
Wall and CPU time are of the whole run, with its two evaluations, which are alike. Training episodes are too short to
succeed (docs/results/libero.md), so what is reached is a mean return of the episodes: the minutes are those of
iterations alone, until the first whose episodes have it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from _measure import machine, save
from quickstart import Steps, history

from embodied.evaluation.compare import compare
from embodied.evaluation.results import evaluation_files, read

LAGS, SEEDS = (0, 1, 2), (1, 2, 3)
REACHED = 0.19  # mean return; it begins near 0.11, and 0.20 is the most that 40 control steps allow


def name_of(lag: int, seed: int) -> str:
    return f"s{lag}-seed{seed}"


def learn(steps: Steps, lag: int, seed: int) -> None:
    steps.run(
        name_of(lag, seed), "train", "experiment=quickstart_libero", f"runner.experiment_name={name_of(lag, seed)}",
        f"runner.seed={seed}", f"algorithm.max_staleness={lag}", "env.eval.video_cfg.save_video=false",
    )  # fmt: skip


def collect(out: Path) -> dict[str, Any]:
    """What each complete run did, by its name."""
    runs = {}
    for name in (name_of(lag, seed) for seed in SEEDS for lag in LAGS):
        if not (out / f"{name}.json").exists():
            continue
        files = evaluation_files(out / "runs" / name)
        rate = compare(read(str(files[0])), read(str(files[-1]))).over_all
        rows = [row for row in history(out, name) if "rollout/return_mean" in row]
        done = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        runs[name] = {
            "before": rate.first.successes, "after": rate.second.successes, "episodes": rate.second.episodes,
            "wall_s": done["wall_s"], "cpu_s": done["cpu_s"], "load": done["load"],
            "iteration_s": median(row["time/iteration_s"] for row in rows),
            "minutes_to_return": next((row["minutes"] for row in rows if row["rollout/return_mean"] >= REACHED), None),
            "returns": [round(row["rollout/return_mean"], 3) for row in rows],
        }  # fmt: skip
    return runs


def table(runs: dict[str, Any]) -> str:
    titles = (
        "max_staleness",
        "after, of 120",
        "s an iteration",
        f"minutes to a return of {REACHED}",
        "wall s",
        "CPU s",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for lag in LAGS:
        of = [runs[name] for seed in SEEDS if (name := name_of(lag, seed)) in runs]
        cells = [
            ", ".join(str(run["after"]) for run in of),
            ", ".join(f"{run['iteration_s']:.1f}" for run in of),
            ", ".join("not" if run["minutes_to_return"] is None else f"{run['minutes_to_return']:.1f}" for run in of),
            ", ".join(f"{run['wall_s']:.0f}" for run in of), ", ".join(f"{run['cpu_s']:.0f}" for run in of),
        ]  # fmt: skip
        lines.append(f"| {lag} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    for seed in () if args.report else SEEDS:  # lags in turn, so that a busy hour is no lag's alone
        for lag in LAGS:
            learn(steps, lag, seed)
    runs = collect(steps.out)
    print(table(runs))
    facts = {"command": "python benchmarks/staleness_quickstart.py --out FOLDER"}
    print(save("staleness_quickstart", {**machine(["torch", "mujoco", "robosuite", "numpy"]), **facts, "runs": runs}))


if __name__ == "__main__":
    main()
