"""Whether a policy learns LIBERO: the tasks of libero_object, a careless clone, then GRPO and PPO, three seeds each.

    python benchmarks/libero_object.py --out /tmp/object             # everything, then the report
    python benchmarks/libero_object.py --out /tmp/object --report    # the report of what is there

Each step is a command of docs/results/libero.md, printed before it runs, in a process of its own; a step that is
complete is not run again, one that was interrupted goes on. Runs are made one after the other, each with all cores. The
bar is 85 % of the episodes from initial states that nothing was trained on, in each run, within three hours. The report
fills the second table of docs/results/libero.md, draws its curves and writes benchmarks/results/libero_object.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from _measure import judge, machine, save
from quickstart import DOCS, Steps, evaluation, fill, history, newest, success

from embodied.run.compare import compare
from embodied.run.evaluations import read, written

BEGIN = "<!-- written by benchmarks/libero_object.py -->"
CLONED = "libero-object-sft"
BEFORE = "libero-object-before"
ALGORITHMS = ("grpo", "ppo")
SEEDS = (1, 2, 3)
ENOUGH = 0.85
HOURS = 3.0
SHOWN = ("minutes", "rollout/return_mean", "eval/success_rate")
NO_VIDEOS = "env.eval.video_cfg.save_video=false"


def prepare(steps: Steps) -> Path:
    """Demonstrations, the clone of them and its success; its checkpoint."""
    steps.run(
        "demos", "tools.demos", "env=libero_object_64", "protocol=held_out", "protocol.held_out_states=20",
        "episodes=600", "noise_std=0.1", "demos.mistakes=0.5",
    )  # fmt: skip
    steps.run(CLONED, "sft", "experiment=libero_object_sft", f"runner.experiment_name={CLONED}")
    checkpoint = newest(steps.out / "runs" / CLONED).relative_to(steps.out)
    steps.run(
        BEFORE, "eval", "experiment=libero_object_grpo", f"runner.experiment_name={BEFORE}",
        f"runner.ckpt_path={checkpoint}", NO_VIDEOS,
    )  # fmt: skip
    return checkpoint


def learn(steps: Steps, algorithm: str, seed: int, checkpoint: Path) -> None:
    name = _name(algorithm, seed)
    steps.run(
        name, "train", f"experiment=libero_object_{algorithm}", f"runner.experiment_name={name}", f"runner.seed={seed}",
        f"runner.ckpt_path={checkpoint}", "runner.val_before_train=false", NO_VIDEOS,
    )  # fmt: skip


def _name(algorithm: str, seed: int) -> str:
    return f"libero-object-{algorithm}-{seed}"


def collect(out: Path) -> dict[str, Any]:
    """What each complete run did, by algorithm and seed."""
    runs = {}
    before = read(str(written(out / "runs" / BEFORE)[-1]))
    for algorithm in ALGORITHMS:
        for seed in SEEDS:
            name = _name(algorithm, seed)
            if not (out / f"{name}.json").exists():
                continue
            (found,) = compare([before, read(str(written(out / "runs" / name)[-1]))])
            rows = history(out, name)
            runs[f"{algorithm} {seed}"] = {
                "after": success(out, name), "tasks": [_task(row) for row in evaluation(out, name)["tasks"][:-1]],
                "difference": found.over_all.difference, "low": found.over_all.low, "high": found.over_all.high,
                **{key: json.loads((out / f"{name}.json").read_text())[key] for key in ("wall_s", "load")},
                "course": [
                    {key: round(row[key], 4) for key in SHOWN if key in row} for row in rows
                ],
            }  # fmt: skip
    first = evaluation(out, BEFORE)["tasks"]
    prepared = {name: json.loads((out / f"{name}.json").read_text())["wall_s"] for name in ("demos", CLONED)}
    return {
        "prepared_s": prepared, "before": success(out, BEFORE), "tasks_before": [_task(row) for row in first[:-1]],
        "runs": runs,
    }  # fmt: skip


def _task(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("instruction", "successes", "episodes")}


def tables(result: dict[str, Any]) -> str:
    """Markdown: success of each run, then of each task."""
    runs = result["runs"]
    lines = ["| run | success (95 % interval) | difference (95 % interval) | wall clock |", "|---|---|---|---|"]
    lines.append(f"| clone | {_percent(result['before'])} | | {result['prepared_s'][CLONED] / 60:.0f} min |")
    for name, run in runs.items():
        change = f"{100 * run['difference']:+.0f} ({100 * run['low']:+.0f} to {100 * run['high']:+.0f})"
        lines.append(f"| {name} | {_percent(run['after'])} | {change} | {run['wall_s'] / 60:.0f} min |")
    lines += ["", "| task, episodes solved | clone | " + " | ".join(runs) + " |", "|---" * (len(runs) + 2) + "|"]
    for index, task in enumerate(result["tasks_before"]):
        solved = [task["successes"], *(run["tasks"][index]["successes"] for run in runs.values())]
        lines.append(f"| {task['instruction']} | " + " | ".join(f"{count}" for count in solved) + " |")
    return "\n".join(lines)


def _percent(row: dict[str, Any]) -> str:
    low, high = 100 * row["low"], 100 * row["high"]
    return f"{row['successes']}/{row['episodes']} = {100 * row['success_rate']:.0f} % ({low:.0f} to {high:.0f})"


def draw(result: dict[str, Any], path: Path) -> None:
    """Success of the evaluations against minutes, a panel for each algorithm; the return of each iteration below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, len(ALGORITHMS), figsize=(9, 5.4), sharex="col", sharey="row")
    for column, algorithm in enumerate(ALGORITHMS):
        above, below = panels[0][column], panels[1][column]
        of_it = {name: run for name, run in result["runs"].items() if name.startswith(algorithm)}
        for color, (name, run) in zip(("C0", "C1", "C2"), of_it.items(), strict=False):
            points = [(0.0, result["before"]["success_rate"])]
            points += [
                (row["minutes"], row["eval/success_rate"]) for row in run["course"] if "eval/success_rate" in row
            ]
            above.plot(
                *zip(*points, strict=True), color=color, marker="o", markersize=4, label=f"seed {name.split()[1]}"
            )
            returns = [
                (row["minutes"], row["rollout/return_mean"]) for row in run["course"] if "rollout/return_mean" in row
            ]
            below.plot(*zip(*returns, strict=True), color=color, linewidth=1)
        above.axhline(ENOUGH, color="grey", linewidth=0.8, linestyle=":")
        above.set(title=algorithm.upper(), ylim=(0, 1))
        below.set(xlabel="minutes of training on two cores")
        for panel in (above, below):
            panel.grid(alpha=0.2)
        if of_it:
            above.legend(loc="lower right", frameon=False)
    panels[0][0].set_ylabel("success, held-out states")
    panels[1][0].set_ylabel("return, training episodes")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(steps: Steps) -> None:
    result = {
        **machine(["torch", "mujoco", "robosuite", "numpy"]),
        "command": "python benchmarks/libero_object.py --out FOLDER",
        **collect(steps.out),
    }
    draw(result, DOCS / "libero.png")
    fill(DOCS / "libero.md", BEGIN, tables(result))
    runs = result["runs"].values()
    rates, hours = [run["after"]["success_rate"] for run in runs], [run["wall_s"] / 3600 for run in runs]
    bars = {"lowest success": (">=", ENOUGH), "longest run, hours": ("<=", HOURS)}
    whole = len(rates) == len(ALGORITHMS) * len(SEEDS)
    judged = judge({"lowest success": min(rates), "longest run, hours": max(hours)}, bars) if whole else {}
    print(save("libero_object", {**result, "bars": judged}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data and runs")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        checkpoint = prepare(steps)
        for seed in SEEDS:
            for algorithm in ALGORITHMS:
                learn(steps, algorithm, seed, checkpoint)
    report(steps)


if __name__ == "__main__":
    main()
