"""Whether a policy learns a task of Meta-World: a clone of twenty demonstrations, then GRPO and PPO, three seeds each.

    python benchmarks/metaworld.py --out /tmp/metaworld            # everything, then the report
    python benchmarks/metaworld.py --out /tmp/metaworld --report   # the report of what is there

``--python`` names the interpreter that has Meta-World, where it is another one (``env.python``). Each step is a command
of docs/results/metaworld.md, printed before it runs, in a process of its own; one that is complete is not run again,
one that was interrupted goes on. All evaluations are greedy and from the same 200 starts, which no training saw. The
report fills the table of docs/results/metaworld.md, draws its curves and writes benchmarks/results/metaworld.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from _measure import judge, machine, save
from quickstart import DOCS, EPISODES, OTHER_STARTS, SEEDS, Steps, fill, history, newest, percent, success

from embodied.evaluation.compare import compare
from embodied.evaluation.results import evaluation_files, read

BEGIN = "<!-- written by benchmarks/metaworld.py -->"
ENV = "quickstart_metaworld"
EXPERIMENTS = {"grpo": "quickstart_metaworld", "ppo": "quickstart_metaworld_ppo"}
CLONED, BEFORE = "quickstart-metaworld-sft", "before"
SHOWN = ("minutes", "rollout/success_rate", "eval/success_rate", "rollout/env_steps_per_s", "time/rollout_s")
ENOUGH = 0.85
TOGETHER = 5  # iterations that share a point of the curve
OF_ENV = ("metaworld", "mujoco", "gymnasium")
NO_VIDEOS = "env.eval.video_cfg.save_video=false"


def evaluate(steps: Steps, name: str, run: str, common: Sequence[str]) -> None:
    checkpoint = newest(steps.out / "runs" / run).relative_to(steps.out)
    steps.run(
        name, "eval", f"experiment={EXPERIMENTS['grpo']}", f"runner.experiment_name={name}",
        f"runner.ckpt_path={checkpoint}", f"env.eval.episodes_per_task={EPISODES}",
        f"env.eval.seed={OTHER_STARTS}", *common,
    )  # fmt: skip


def learn_all(steps: Steps, common: Sequence[str]) -> None:
    steps.run("demos", "tools.demos", f"env={ENV}", "episodes=20", "noise_std=0.1", *common[:-1])
    steps.run(CLONED, "sft", "experiment=quickstart_metaworld_sft", *common)
    evaluate(steps, BEFORE, CLONED, common)
    cloned = newest(steps.out / "runs" / CLONED).relative_to(steps.out)
    for algorithm, seed in product(EXPERIMENTS, SEEDS):
        name = f"{algorithm}-{seed}"
        steps.run(
            name, "train", f"experiment={EXPERIMENTS[algorithm]}", f"runner.experiment_name={name}",
            f"runner.seed={seed}", f"runner.ckpt_path={cloned}", *common,
        )  # fmt: skip
        evaluate(steps, f"{name}-after", name, common)


def collect(out: Path) -> dict[str, Any]:
    """What each complete run did."""
    before, runs = read(str(evaluation_files(out / "runs" / BEFORE)[-1])), {}
    for name in (f"{algorithm}-{seed}" for algorithm, seed in product(EXPERIMENTS, SEEDS)):
        if not (out / f"{name}-after.json").exists():
            continue
        row = compare(before, read(str(evaluation_files(out / "runs" / f"{name}-after")[-1]))).over_all
        done = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        runs[name.replace("-", " ")] = {
            "after": success(out, f"{name}-after"), "difference": row.difference, "low": row.low, "high": row.high,
            "wall_s": done["wall_s"], "load": done["load"],
            "iterations": [{key: round(row[key], 4) for key in SHOWN if key in row} for row in history(out, name)],
        }  # fmt: skip
    prepared = {
        name: json.loads((out / f"{name}.json").read_text(encoding="utf-8"))["wall_s"] for name in ("demos", CLONED)
    }
    return {"prepared_s": prepared, "before": success(out, BEFORE), "runs": runs}


def table(result: dict[str, Any]) -> str:
    """Markdown: success before and after."""
    titles = ("policy", "greedy success on 200 other starts (95 % interval)", "difference (95 % interval)", "minutes")
    prepared = sum(result["prepared_s"].values()) / 60
    lines = [
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
        f"| cloned from 20 demonstrations | {percent(result['before'])} | | {prepared:.1f}, demonstrations included |",
    ]
    for name, run in result["runs"].items():
        change = f"{100 * run['difference']:+.0f} ({100 * run['low']:+.0f} to {100 * run['high']:+.0f})"
        lines.append(f"| {name} | {percent(run['after'])} | {change} | {run['wall_s'] / 60:.0f} |")
    return "\n".join(lines)


def draw(result: dict[str, Any], path: Path) -> None:
    """Success of training's sampled episodes as lines, greedy success on the run's own starts as dots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(EXPERIMENTS), figsize=(9, 3.4), sharey=True)
    for panel, algorithm in zip(panels, EXPERIMENTS, strict=True):
        runs = [(name, run) for name, run in result["runs"].items() if name.startswith(algorithm)]
        for color, (name, run) in zip(("C0", "C1", "C2"), runs, strict=False):
            rates = [row["rollout/success_rate"] for row in run["iterations"]]
            parts = [rates[i : i + TOGETHER] for i in range(0, len(rates), TOGETHER)]
            middles = [TOGETHER * i + (len(part) + 1) / 2 for i, part in enumerate(parts)]
            panel.plot(middles, [sum(part) / len(part) for part in parts], color=color, label=f"seed {name.split()[1]}")
            greedy = [(i, row["eval/success_rate"]) for i, row in enumerate(run["iterations"], 1) if SHOWN[2] in row]
            panel.plot(*zip(*greedy, strict=True), color=color, linestyle="", marker="o", markersize=4)
        panel.axhline(ENOUGH, color="grey", linewidth=0.8, linestyle=":")
        panel.set(title=algorithm.upper(), xlabel="iteration", ylim=(0, 1))
        panel.grid(alpha=0.2)
        panel.legend(loc="lower right", frameon=False)
    panels[0].set_ylabel("success rate")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def report(steps: Steps, python: str) -> None:
    facts = {**machine(["torch", "numpy"]), "command": "python benchmarks/metaworld.py --out FOLDER"}
    script = (
        f"import json; from importlib.metadata import version; print(json.dumps({{n: version(n) for n in {OF_ENV}}}))"
    )
    facts["versions"] |= json.loads(subprocess.run([python, "-c", script], capture_output=True, check=True).stdout)
    result = {**facts, **collect(steps.out)}
    draw(result, DOCS / "metaworld.png")
    fill(DOCS / "metaworld.md", BEGIN, table(result))
    values = {"lowest success": min(run["after"]["success_rate"] for run in result["runs"].values())}
    print(save("metaworld", {**result, "bars": judge(values, {"lowest success": (">=", ENOUGH)})}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of data and runs")
    parser.add_argument("--python", help="interpreter that has Meta-World; default: this one")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        learn_all(steps, [*([f"env.python={args.python}"] if args.python else []), "env.num_workers=2", NO_VIDEOS])
    report(steps, args.python or sys.executable)


if __name__ == "__main__":
    main()
