"""Whether a policy learns LIBERO: GRPO and PPO from the policy that comes with the package, with three seeds each.

    python benchmarks/libero_whole.py --out /tmp/libero             # everything, then the report
    python benchmarks/libero_whole.py --out /tmp/libero --report    # the report of what is there

A run of GRPO is two trainings: of the first five chunks of an episode, as ``make train`` does it, and then of whole
episodes. PPO learns from whole episodes alone. Each training is a command of docs/results/libero.md, printed before it
runs, in a process of its own; one that is complete is not run again, one that was interrupted goes on. ``--at-once 2``
makes runs of both algorithms side by side: the same numbers in other times, and the report says so. The bar is 85 % of
the episodes from initial states that nothing was trained on, in each run, within three hours. A run that is below it
when its iterations are done goes on once (``MORE``). The report fills the second table of docs/results/libero.md, draws
its curves and writes benchmarks/results/libero_whole.json.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _measure import judge, machine, save
from quickstart import DOCS, Steps, evaluation, fill, history, newest, success

from embodied.evaluation.compare import compare
from embodied.evaluation.results import evaluation_files, read

BEGIN = "<!-- written by benchmarks/libero_whole.py -->"
BEFORE = "before"
ALGORITHMS = ("grpo", "ppo")
SEEDS = (1, 2, 3)
EXPERIMENTS = {"grpo": "quickstart_libero_whole", "ppo": "quickstart_libero_ppo"}
MORE = {"grpo": 20, "ppo": 36}
"""Iterations of whole episodes in all, where those of the experiment were not enough."""
ENOUGH = 0.85
HOURS = 3.0
SHOWN = ("minutes", "rollout/return_mean", "rollout/success_rate", "eval/success_rate")
NO_VIDEOS = "env.eval.video_cfg.save_video=false"


def learn(steps: Steps, algorithm: str, seed: int) -> None:
    """One run. Where it stays below the bar it goes on, once: the same command with a larger ``runner.max_epochs``."""
    name, settings = f"{algorithm}-{seed}", [f"runner.seed={seed}", NO_VIDEOS]
    if algorithm == "grpo":
        first = f"{name}-first"
        steps.run(
            first, "train", "experiment=quickstart_libero", f"runner.experiment_name={first}", *settings,
            "runner.val_before_train=false", "runner.val_check_interval=-1",
        )  # fmt: skip
        checkpoint = newest(steps.out / "runs" / first).relative_to(steps.out)
        settings.append(f"runner.ckpt_path={checkpoint}")
    settings = [f"experiment={EXPERIMENTS[algorithm]}", f"runner.experiment_name={name}", *settings]
    steps.run(name, "train", *settings)
    if success(steps.out, name)["success_rate"] < ENOUGH:
        longer = MORE[algorithm]
        more = (f"runner.max_epochs={longer}", f"runner.val_check_interval={longer}")
        steps.run(f"{name}-more", "train", *settings, *more)


def parts_of(out: Path, name: str) -> list[str]:
    """The trainings that a run is made of."""
    return [part for part in (f"{name}-first", name, f"{name}-more") if (out / f"{part}.json").exists()]


def learn_all(steps: Steps, at_once: int) -> None:
    steps.run(BEFORE, "eval", "experiment=quickstart_libero_whole", f"runner.experiment_name={BEFORE}", NO_VIDEOS)

    def of(algorithm: str) -> None:
        for seed in SEEDS:
            learn(steps, algorithm, seed)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(of, ALGORITHMS))


def collect(out: Path) -> dict[str, Any]:
    """What each complete run did, by algorithm and seed."""
    runs = {}
    before = read(str(evaluation_files(out / "runs" / BEFORE)[-1]))
    for name in (f"{algorithm}-{seed}" for algorithm in ALGORITHMS for seed in SEEDS):
        if not (out / f"{name}.json").exists():
            continue
        found = compare(before, read(str(evaluation_files(out / "runs" / name)[-1])))
        parts = parts_of(out, name)
        row, done = found.over_all, [json.loads((out / f"{part}.json").read_text(encoding="utf-8")) for part in parts]
        runs[name.replace("-", " ")] = {
            "after": success(out, name), "tasks": _tasks(out, name),
            "difference": row.difference, "low": row.low, "high": row.high,
            "wall_s": [part["wall_s"] for part in done], "load": [part["load"] for part in done],
            "first success": success_at_first(out, name),
            "courses": [_course(out, part) for part in parts if not part.endswith("-more")],
        }  # fmt: skip
    return {"before": success(out, BEFORE), "tasks_before": _tasks(out, BEFORE), "runs": runs}


def success_at_first(out: Path, name: str) -> dict[str, Any]:
    """What a run had reached when the iterations of its experiment were done."""
    row = json.loads(min((out / "runs" / name / "eval").glob("*.json")).read_text(encoding="utf-8"))["tasks"][-1]
    return {key: row[key] for key in ("successes", "episodes", "success_rate")}


def _tasks(out: Path, name: str) -> list[dict[str, Any]]:
    keys = ("instruction", "successes", "episodes")
    return [{key: row[key] for key in keys} for row in evaluation(out, name)["tasks"][:-1]]


def _course(out: Path, name: str) -> list[dict[str, float]]:
    return [{key: round(row[key], 4) for key in SHOWN if key in row} for row in history(out, name)]


def tables(result: dict[str, Any]) -> str:
    """Markdown: success of each run and of its tasks."""
    names = [task["instruction"].removeprefix("pick up the ").partition(" and ")[0] for task in result["tasks_before"]]
    titles = [
        "run",
        "success (95 % interval)",
        *names,
        "difference (95 % interval)",
        "minutes",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, run in (
        {"before": {"after": result["before"], "tasks": result["tasks_before"]}} | result["runs"]
    ).items():
        change, minutes = "", ""
        if "difference" in run:
            change = f"{100 * run['difference']:+.0f} ({100 * run['low']:+.0f} to {100 * run['high']:+.0f})"
            minutes = " + ".join(f"{seconds / 60:.0f}" for seconds in run["wall_s"])
        tasks = [f"{task['successes']}/{task['episodes']}" for task in run["tasks"]]
        lines.append(f"| {' | '.join([name, _percent(run['after']), *tasks, change, minutes])} |")
    return "\n".join(lines)


def _percent(row: dict[str, Any]) -> str:
    low, high = 100 * row["low"], 100 * row["high"]
    return f"{row['successes']}/{row['episodes']} = {100 * row['success_rate']:.0f} % ({low:.0f} to {high:.0f})"


def draw(result: dict[str, Any], path: Path) -> None:
    """Return and sampled success of each iteration, and success before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(10, 3.4), width_ratios=(2, 2, 1))
    for panel, title in zip(panels, ("return, first five chunks", "sampled success, whole episodes"), strict=False):
        panel.set(title=title, xlabel="iteration")
        panel.grid(alpha=0.2)
    for name, run in result["runs"].items():
        algorithm, seed = name.split()
        style = {"color": f"C{int(seed) - 1}", "linestyle": "-" if algorithm == "grpo" else "--", "label": name}
        shown = [(panels[1], run["courses"][-1], "rollout/success_rate")]
        if len(run["courses"]) == 2:
            shown.append((panels[0], run["courses"][0], "rollout/return_mean"))
        for panel, course, key in shown:
            points = [row[key] for row in course if key in row]
            panel.plot([*range(1, len(points) + 1)], points, linewidth=1, **style)
        panels[2].plot([0, 1], [result["before"]["success_rate"], run["after"]["success_rate"]], marker="o", **style)
    panels[1].legend(loc="lower right", frameon=False, fontsize=7, ncols=2)
    panels[1].set(ylim=(0, 1))
    panels[2].axhline(ENOUGH, color="grey", linewidth=0.8, linestyle=":")
    panels[2].set(title="success, held-out states", ylim=(0, 1), xlim=(-0.3, 1.3))
    panels[2].set_xticks([0, 1], ["before", "after"])
    panels[2].grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(steps: Steps, at_once: int) -> None:
    result = {
        **machine(["torch", "mujoco", "robosuite", "numpy"]),
        "command": f"python benchmarks/libero_whole.py --out FOLDER --at-once {at_once}",
        **collect(steps.out),
    }
    draw(result, DOCS / "libero.png")
    fill(DOCS / "libero.md", BEGIN, tables(result))
    runs = result["runs"].values()
    judged = {}
    if len(runs) == len(ALGORITHMS) * len(SEEDS):
        values = {
            "lowest success": min(run["after"]["success_rate"] for run in runs),
            "longest run, hours": max(sum(run["wall_s"]) for run in runs) / 3600,
        }
        judged = judge(values, {"lowest success": (">=", ENOUGH), "longest run, hours": ("<=", HOURS)})
    print(save("libero_whole", {**result, "bars": judged}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--at-once", type=int, default=1, help="2: the runs of both algorithms side by side")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        learn_all(steps, args.at_once)
    report(steps, args.at_once)


if __name__ == "__main__":
    main()
